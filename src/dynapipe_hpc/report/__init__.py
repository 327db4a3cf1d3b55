"""In: run folders. Out: tables, figures, traces and pages."""
