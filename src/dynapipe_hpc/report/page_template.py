"""Templates of pages."""

from jinja2 import Environment, PackageLoader, StrictUndefined, Template


def page_template(name: str) -> Template:
    """The template of a page, by the name of its file; unknown names in it are errors."""
    environment = Environment(
        loader=PackageLoader("dynapipe_hpc.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(name)
