"""Spack's recipe: what the site has compiled, and the extras of pip as variants."""

from collections.abc import Mapping

from spack.package import Prefix, Spec, depends_on, license, requires, variant, version
from spack_repo.builtin.build_systems.python import PythonPackage


class PyDynapipeHpc(PythonPackage):
    """Pipeline-parallel training of language models on samples of very different lengths,
    as an MPI batch job.
    """

    license("Apache-2.0")

    version("0.1.0")

    variant("hdf5", default=False, description="Measured cost tables, and datasets")
    variant("text", default=False, description="Datasets from text")
    variant("zstd", default=False, description="Compressed text")
    variant("parquet", default=False, description="Tables of Parquet and Arrow")
    variant("report", default=False, description="Pages with figures")
    variant("train", default=True, description="Runs, profiles, models of Hugging Face")

    requires("+hdf5", when="+text")
    requires("+text", when="+zstd")
    requires("+text", when="+parquet")
    requires("+report+text", when="+train")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("ninja", type="build")
    depends_on("py-scikit-build-core@1.0:", type="build")
    depends_on("py-pybind11@3.0:", type="build")

    depends_on("python@3.11:3.13", type=("build", "run"))
    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-pydantic@2.7:", type=("build", "run"))
    depends_on("py-tomli-w@1.0:", type=("build", "run"))
    depends_on("py-tqdm@4.66:", type=("build", "run"))

    depends_on("py-h5py@3.11:", type=("build", "run"), when="+hdf5")
    depends_on("py-jinja2@3.1.6:", type=("build", "run"), when="+text")
    depends_on("py-tokenizers@0.20:", type=("build", "run"), when="+text")
    depends_on("py-transformers@5:", type=("build", "run"), when="+text")
    depends_on("py-zstandard@0.22:", type=("build", "run"), when="+zstd")
    depends_on("py-pyarrow@16:", type=("build", "run"), when="+parquet")
    depends_on("py-jinja2@3.1.6:", type=("build", "run"), when="+report")
    depends_on("py-matplotlib@3.8:", type=("build", "run"), when="+report")
    depends_on("py-mpi4py@4.1:", type=("build", "run"), when="+train")
    depends_on("py-safetensors@0.5:", type=("build", "run"), when="+train")
    depends_on("py-torch@2.6:", type=("build", "run"), when="+train")

    def config_settings(self, spec: Spec, prefix: Prefix) -> Mapping[str, object]:
        """The site's MPI keeps its own settings."""
        return {"cmake.define.DYNAPIPE_OPEN_MPI_SETTINGS": "OFF"}
