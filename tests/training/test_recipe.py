import pytest

from interlace.errors import InputError
from interlace.training.recipe import load_recipe, parse_recipe

LEAST = {"data": {"files": ["a"]}, "schedule": {"steps": 5}, "run": {"out": "o"}}


def test_defaults_and_values():
    recipe = parse_recipe({**LEAST, "optimizer": {"betas": [0.8, 0.9], "lr": 1}})
    assert recipe.optimizer.betas == (0.8, 0.9)
    assert recipe.optimizer.lr == 1.0
    assert isinstance(recipe.optimizer.lr, float)
    assert recipe.model.preset == "default"


@pytest.mark.parametrize(
    ("section", "key", "nearest"),
    [
        ("optimizer", "weight_decy", "weight_decay"),
        ("run", "threds", "threads"),
        ("schedule", "step", "steps"),
    ],
)
def test_unknown_key_is_refused_with_the_nearest(section, key, nearest):
    values = {name: dict(table) for name, table in LEAST.items()}
    values.setdefault(section, {})[key] = 1
    with pytest.raises(
        InputError, match=rf"unknown key {section}\.{key} .* {section}\.{nearest}\."
    ):
        parse_recipe(values)


def test_unknown_section_and_group_key():
    with pytest.raises(InputError, match=r"unknown key optimiser in the recipe; .* optimizer"):
        parse_recipe({**LEAST, "optimiser": {}})
    with pytest.raises(InputError, match=r"optimizer\.group\.lr_scal "):
        parse_recipe({**LEAST, "optimizer": {"group": [{"match": "x", "lr_scal": 2.0}]}})


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("schedule", "steps", "many", "must be of type int"),
        ("schedule", "steps", True, "must be of type int"),
        ("schedule", "steps", 0, "must be positive"),
        ("schedule", "shape", "square", "must be one of cosine, linear-cooldown"),
        ("optimizer", "betas", [0.9], "must have 2 items"),
        ("run", "ema", 1.5, "between 0 and 1"),
        ("run", "export", "averaged", "set run.ema"),
        ("run", "processes", 3, "multiple of run.processes"),
        ("data", "manifest", "m.json", "exactly one"),
    ],
)
def test_wrong_values(section, key, value, message):
    values = {name: dict(table) for name, table in LEAST.items()}
    values[section] = {**values.get(section, {}), key: value}
    with pytest.raises(InputError, match=message):
        parse_recipe(values)


def test_required_key_is_named():
    with pytest.raises(InputError, match=r"schedule\.steps"):
        parse_recipe({**LEAST, "schedule": {}})


def test_overrides(tmp_path):
    path = tmp_path / "r.toml"
    path.write_text('[data]\nfiles = ["a"]\n[schedule]\nsteps = 5\n[run]\nout = "o"\n')
    recipe = load_recipe(
        path, ["schedule.steps=7", "run.out=elsewhere", "model.config.hidden_size=48"]
    )
    assert recipe.schedule.steps == 7
    assert recipe.run.out == "elsewhere"
    assert recipe.model.config == {"hidden_size": 48}
    assert recipe.folder == tmp_path
    with pytest.raises(InputError, match=r"section\.key=value"):
        load_recipe(path, ["schedule.steps"])
    with pytest.raises(InputError, match=r"unknown key schedule\.stepps"):
        load_recipe(path, ["schedule.stepps=7"])


def test_unreadable_recipe(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_recipe(tmp_path / "none.toml")
    (tmp_path / "bad.toml").write_text("[data\n")
    with pytest.raises(InputError, match="must be TOML"):
        load_recipe(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("section", "changes"),
    [
        ("optimizer", {"clip": float("nan")}),
        ("optimizer", {"lr": float("inf")}),
        ("optimizer", {"lr": 10**400}),
        ("optimizer", {"betas": [2.0, 0.9]}),
        ("optimizer", {"muon_momentum": 1.0}),
        ("optimizer", {"weight_decay": -1.0}),
        ("optimizer", {"group": [{"match": "("}]}),
        ("optimizer", {"group": [{"match": "x", "lr_scale": -1.0}]}),
        ("model", {"embedding_std": -1.0}),
        ("run", {"seed": -1}),
        ("run", {"seed": 2**63}),
        ("run", {"out": ""}),
        ("run", {"cpu_limit": -1.0}),
    ],
)
def test_numbers_that_mean_nothing_are_refused_by_name(section, changes):
    values = {**LEAST, section: {**LEAST.get(section, {}), **changes}}
    with pytest.raises(InputError, match=rf"{section}.{next(iter(changes))}"):
        parse_recipe(values)


def test_start_values_need_a_regular_expression():
    with pytest.raises(InputError, match=r"init\.match must be a regular expression"):
        parse_recipe({**LEAST, "init": [{"match": "("}]})
