"""Builds the libraries under torch for CUDA: ours, and one that refuses for each of NVIDIA's.

    python -m tests.rehearsal.build FOLDER

FOLDER has torch's wheel in `torch` and NVIDIA's headers in `headers`, as `make gpu-rehearsal` puts
them there.
"""

import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent / "device.cpp"
# What the names of functions begin with, of libraries that do not give their names to symbols.
PREFIXES = {
    "nccl": "libnccl.so.2",
    "cuFile": "libcufile.so.0",
    "cusparseLt": "libcusparseLt.so.0",
    "curand": "libcurand.so.10",
    "nvshmem": "libnvshmem_host.so.3",
    "cu": "libcuda.so.1",
}
# Functions of these do nothing and succeed: all that they would do is compute.
COMPUTING = ("cublas", "cusparse", "cudnn", "cufft", "curand", "cusolver")
NVIDIA = re.compile(r"lib(cu|nv|nccl)\S*\.so\.\d+")


def main(folder: Path) -> None:
    """Builds everything into the folder `libraries`."""
    made = folder / "libraries"
    made.mkdir(parents=True, exist_ok=True)
    torch_libraries = sorted((folder / "torch" / "torch" / "lib").glob("*.so"))
    (headers,) = (path.parent for path in (folder / "headers").rglob("cuda_runtime_api.h"))
    compile_library(
        made / "librehearsal.so", SOURCE.read_text(), ["-I", str(headers), "-w", "-std=c++20"]
    )
    ours = set(re.findall(r" T (\S+)", output_of(["nm", "-D", str(made / "librehearsal.so")])))
    library_of = dict(versions_of(torch_libraries))
    functions = defaultdict[str, set[str]](set)
    for function, version in undefined(torch_libraries):
        starts = (PREFIXES[start] for start in PREFIXES if function.startswith(start))
        library = library_of.get(version) if version else next(starts, None)
        if library:
            functions[library].add(function)
    for library in needed(torch_libraries):
        text = "".join(map(stub, sorted(functions[library] - ours)))
        version = next((v for v, name in library_of.items() if name == library), library)
        script = made / f"{library}.map"
        script.write_text(f"{version} {{ global: *; }};\n")
        options = [f"-Wl,-soname,{library}", f"-Wl,--version-script={script}"]
        # What asks this library by hand for one of our functions finds it there.
        options += ["-Wl,--no-as-needed", f"-L{made}", "-l:librehearsal.so"]
        head = 'extern "C" { int rehearsal_unknown(const char*);\n'
        compile_library(made / library, f"{head}{text}}}\n", options)


def stub(function: str) -> str:
    """A function that computes nothing, or says that it is not rehearsed."""
    answer = "0" if function.startswith(COMPUTING) else f'rehearsal_unknown("{function}")'
    return f"int {function}() {{ return {answer}; }}\n"


def compile_library(path: Path, source: str, options: list[str]) -> None:
    """Compiles a shared library from the text of its source."""
    command = ["g++", "-x", "c++", "-O1", "-shared", "-fPIC", "-", "-o", str(path), *options]
    subprocess.run(command, input=source, text=True, check=True)


def versions_of(libraries: list[Path]) -> Iterator[tuple[str, str]]:
    """Versions that symbols of NVIDIA's libraries bear, each with its library."""
    texts = (output_of(["objdump", "-p", str(library)]) for library in libraries)
    for text in texts:
        for library, versions in re.findall(r"required from (\S+):\n((?:\s+0x.*\n)+)", text):
            if NVIDIA.fullmatch(library):
                yield from ((line.split()[-1], library) for line in versions.splitlines())


def undefined(libraries: list[Path]) -> Iterator[tuple[str, str]]:
    """Functions that libraries call in others, each with its version, which may be empty."""
    command = ["nm", "-D", "--undefined-only", "--with-symbol-versions", *map(str, libraries)]
    for symbol in re.findall(r" U (\S+)", output_of(command)):
        name, _, version = symbol.partition("@")
        yield name, version


def needed(libraries: list[Path]) -> set[str]:
    """Names of NVIDIA's libraries that libraries are linked with."""
    texts = (output_of(["readelf", "-d", str(library)]) for library in libraries)
    names = (name for text in texts for name in re.findall(r"NEEDED.*\[(\S+)\]", text))
    return {name for name in names if NVIDIA.fullmatch(name)}


def output_of(command: list[str]) -> str:
    """The output of a command."""
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))
