"""The promises of docs/architecture.md that a reader of one file cannot see."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import interlace
from interlace.shapes import LEGEND

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "interlace"
SOURCES = sorted(PACKAGE.rglob("*.py"))
SCRIPTS = [path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")]
# Room -> lines it may have. A room over 2,500 is split, or argued for in docs/architecture.md.
LINES = 2_500
ARGUED = {"bench": 3_300, "ops": 5_500, "planner": 4_000}
ROOMS = sorted(
    path.name for path in PACKAGE.iterdir() if path.is_dir() and (path / "__init__.py").exists()
)

PUBLIC = [
    "HybridConfig",
    "HybridLM",
    "__version__",
    "build",
    "generate",
    "load",
    "load_cache",
    "loglikelihood",
    "plan",
    "save",
    "stream",
]


def short(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_of(path: Path) -> int:
    return len(path.read_text().splitlines())


def axis_strings(source: str) -> list[str]:
    """Every shape string inside `Float[...]`, `Int[...]` or `Bool[...]`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)):
            continue
        if node.value.id in {"Float", "Int", "Bool"} and isinstance(node.slice, ast.Tuple):
            shape = node.slice.elts[-1]
            assert isinstance(shape, ast.Constant)
            found.append(str(shape.value))
    return found


def unknown_axes(shape: str) -> list[str]:
    """Names in a shape string that are neither a letter of the legend nor a spelled-out word.

    A name may join letters and words: `T_out` is a number of tokens, `S_plus_1` one more than `S`.
    """
    parts = [part for part in re.findall(r"[A-Za-z]+", shape) if part not in LEGEND]
    return [part for part in parts if not (part.islower() and len(part) > 2)]


@pytest.mark.parametrize(
    ("shape", "unknown"),
    [
        ("B T H K", []),
        ("*batch D", []),
        ("B M R+P", []),
        ("B W-1 H*K", []),
        ("B 1 vocab", []),
        ("S_plus_1", []),
        ("B T_out vocab", []),
        ("T_in_Q", ["in", "Q"]),
        ("... D", []),
        ("B T Q", ["Q"]),
        ("b T", ["b"]),
        ("B HV", ["HV"]),
    ],
)
def test_axis_rule_tells_letters_from_words(shape, unknown):
    assert unknown_axes(shape) == unknown


def test_every_axis_letter_is_in_the_legend():
    shapes = {short(path): axis_strings(path.read_text()) for path in SOURCES}
    assert sum(map(len, shapes.values())) > 20, "found hardly any annotation: is the walk broken?"
    wrong = {
        (path, shape): names
        for path, found in shapes.items()
        for shape in found
        if (names := unknown_axes(shape))
    }
    assert not wrong


def test_public_names_are_these():
    assert sorted(interlace.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(interlace, name) is not None
    assert set(PUBLIC) <= set(dir(interlace))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = interlace.nothing


def test_no_file_over_500_lines():
    long = {short(p): n for p in [*SOURCES, *SCRIPTS] if (n := lines_of(p)) > 500}
    assert not long


def test_no_room_over_its_lines():
    sizes = {room: sum(map(lines_of, (PACKAGE / room).rglob("*.py"))) for room in ROOMS}
    assert not {room: n for room, n in sizes.items() if n > ARGUED.get(room, LINES)}


@pytest.mark.parametrize("room", ROOMS)
def test_room_has_its_sentence_and_its_place_in_the_docs(room):
    first = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text()))
    assert first, f"{room}/__init__.py needs one sentence that says what the room is for"
    assert f"`{room}`" in (ROOT / "docs" / "architecture.md").read_text()
    assert f"{room}/" in (ROOT / "README.md").read_text()


def test_every_module_opens_with_its_paragraph():
    assert not [short(p) for p in SOURCES if not ast.get_docstring(ast.parse(p.read_text()))]


def test_nothing_is_called_utils():
    vague = {"utils", "util", "common", "misc", "helpers"}
    assert not [short(p) for p in [*SOURCES, *SCRIPTS] if vague & {p.stem, p.parent.name}]


def test_no_two_test_modules_share_a_name():
    """pytest puts every test folder on the path, so the second of two would never be imported."""
    names = [path.stem for path in SCRIPTS if path.stem not in {"__init__", "conftest"}]
    assert not {name for name in names if names.count(name) > 1}


def test_import_loads_nothing_heavy():
    """`interlace` and the rooms that count bytes start without torch (and without numpy)."""
    rooms = "interlace, interlace.config, interlace.config.sizes, interlace.config.presets"
    rooms += ", interlace.planner, interlace.planner.report, interlace.cli"
    light = f"{rooms}, interlace.text, interlace.checkpoints.headers, interlace.checkpoints.names"
    code = (
        f"import sys, {light}, interlace.checkpoints.inspect; interlace.HybridConfig; "
        "heavy = {'torch', 'numpy', 'safetensors', 'tqdm'}; "
        "sys.exit(' '.join(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_checkpoints_room_imports_nothing_by_itself():
    tree = ast.parse((PACKAGE / "checkpoints" / "__init__.py").read_text())
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def test_nothing_is_unpickled():
    banned = {"pickle", "dill", "shelve", "marshal", "cloudpickle", "joblib"}
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Attribute) and node.attr == "load":
                owner = node.value
                assert not (isinstance(owner, ast.Name) and owner.id == "torch"), short(path)
            assert not banned & {name.split(".")[0] for name in names}, short(path)


def absolute_literals(source: str) -> list[str]:
    """String literals that are an absolute path, docstrings aside."""
    tree = ast.parse(source)
    texts = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and id(node) not in texts
        and re.match(r"(/[a-z]+/|~/)", node.value)
    ]


def test_nothing_reads_a_path_outside_the_repository():
    """A user's own arguments apart, only the kernel's accounts of memory and time are read."""
    assert absolute_literals('open("/etc/x")\n"""/etc/y"""') == ["/etc/x"]
    kernel = ("/proc/", "/sys/fs/cgroup")
    for path in [*SOURCES, *SCRIPTS]:
        source = path.read_text()
        if path == Path(__file__):
            continue
        assert not [s for s in absolute_literals(source) if not s.startswith(kernel)], short(path)
        assert not re.search(r"expanduser|Path\.home|gettempdir", source), short(path)


def test_the_repository_speaks_of_no_machine():
    hosts = "|".join(["py" + "pi.org", "python" + "hosted", "npm" + "js", "deb" + "ian.org"])
    machine = re.compile(rf"(?<![\w.)}}])/(work|tmp|root|home)/|{hosts}")
    assert machine.search(" /" + "work/x")
    assert not machine.search("frame/work/x")
    folders = ("src", "tests", "docs", "benchmarks", "recipes", ".ci")
    kept = {".py", ".md", ".toml", ".txt", ".cff", ".json", ".jsonl", ".yml", ".sh", ""}
    files = [p for f in folders for p in (ROOT / f).rglob("*") if p.is_file() and p.suffix in kept]
    files += [p for p in ROOT.iterdir() if p.is_file() and p.suffix in kept]
    assert len(files) > 40
    for path in files:
        assert not machine.search(path.read_text(errors="replace")), short(path)
