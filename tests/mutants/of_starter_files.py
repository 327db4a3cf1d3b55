from tests.mutants.mutant import of

STARTER_FILES = (
    *of("job/starter_files.py", "tests/job/test_starter_files.py",
        (', "benchmarks/cluster"', "", "the first job on a cluster lacks its program"),
        ("_IN_WHEEL if _IN_WHEEL.is_dir() else _IN_CHECKOUT", "_IN_CHECKOUT",
         "an installed package looks temporary itself"),
        ('rglob("*")', 'glob("*")', "folders in folders are left out"),
        (' and "__pycache__" not in rest', "", "what Python has compiled is copied"),
        ("complete.enter_context(new_folder(folder / name))", "folder / name",
         "a failure leaves half a copy"),
        ("        with new_folder(folder) as temporary:\n            return _copy_into(temporary)",
         "        folder.mkdir()\n        return _copy_into(folder)",
         "a failure leaves an empty folder"),
        ("copyfile(source, target)", "import shutil; shutil.copy(source, target)",
         "copies of read-only files cannot be changed"),
        ("if is_script:", "if False:", "scripts cannot be started"),
        ("mode | (mode & 0o444) >> 2", "mode | 0o111", "others may run what they may not read"),
        ("    if not folder.is_dir():", "    if False:", "a file in the way is not named")),
)  # fmt: skip
