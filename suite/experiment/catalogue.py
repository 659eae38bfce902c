"""Finding experiments and clusters by name: in the working folder first, then among the shipped ones."""

from pathlib import Path

from suite.experiment.cluster import Cluster, read_cluster
from suite.experiment.errors import BadInput, Place, Problem, did_you_mean
from suite.experiment.spec import DEFAULT_SCALE, Experiment, read_experiment
from suite.resources import resource_dir

_SUFFIXES = (".yaml", ".yml")


def load_experiment(name_or_path: str | Path) -> Experiment:
    """The experiment in a file, given by path or by name. Raises BadInput."""
    return read_experiment(find_experiment(name_or_path))


def find_experiment(name_or_path: str | Path) -> Path:
    """The file of an experiment, given by path, by name, or by name with its folder (`paper/table-1`)."""
    given = str(name_or_path)
    path = Path(given)
    if path.suffix in _SUFFIXES:
        if path.is_file():
            return path
        raise BadInput([Problem(f"there is no such file; {did_you_mean(path.stem, list_experiments())}", Place(given))])
    for root in _experiment_roots():
        found = [file for file in _files(root) if given in (file.stem, str(file.relative_to(root).with_suffix("")))]
        if len(found) > 1:
            names = " or ".join(str(file) for file in found)
            raise BadInput([Problem(f"several experiments have this name; give the path: {names}", Place(given))])
        if found:
            return found[0]
    if path.is_file():
        return path
    message = f"there is no experiment of this name; {did_you_mean(given, list_experiments())}"
    raise BadInput([Problem(message, Place(given))])


def list_experiments() -> dict[str, Path]:
    """Every experiment that a name finds, with its file."""
    found: dict[str, Path] = {}
    for root in _experiment_roots():
        for file in _files(root):
            found.setdefault(file.stem, file)
    return found


def experiments_in(folder: str) -> dict[str, Path]:
    """The experiments in a folder of experiments, given by its name, such as `paper`; none where it is no such name.

    The name of an experiment is never a folder's.
    """
    if folder in (*list_experiments(), "", "..") or Path(folder).name != folder:
        return {}
    for root in _experiment_roots():
        if found := {file.stem: file for file in _files(root / folder)}:
            return found
    return {}


def default_scale(experiment: Experiment) -> str:
    """The scale to take where none is asked for: laptop, or the only one. BadInput lists them otherwise."""
    if DEFAULT_SCALE in experiment.scales:
        return DEFAULT_SCALE
    if len(experiment.scales) == 1:
        return next(iter(experiment.scales))
    message = f"has no scale '{DEFAULT_SCALE}'; choose one with --scale: {', '.join(experiment.scales)}"
    raise BadInput([Problem(message, Place(str(experiment.path)))])


def load_cluster(name: str, place: Place | None = None) -> Cluster:
    """The cluster profile of that name. BadInput, at `place`, where there is none."""
    clusters = list_clusters()
    if name not in clusters:
        message = f"there is no cluster '{name}'; {did_you_mean(name, clusters)}"
        raise BadInput([Problem(message, place, "cluster")])
    return read_cluster(clusters[name])


def list_clusters() -> dict[str, Path]:
    """Every cluster profile by name, with its file."""
    found: dict[str, Path] = {}
    for root in (Path("slurm/clusters"), resource_dir("clusters")):
        for file in _files(root):
            found.setdefault(file.stem, file)
    return found


def _experiment_roots() -> tuple[Path, Path]:
    return Path("experiments"), resource_dir("experiments")


def _files(root: Path) -> list[Path]:
    return sorted(file for suffix in _SUFFIXES for file in root.rglob(f"*{suffix}")) if root.is_dir() else []
