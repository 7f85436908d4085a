"""`penstock config`: what is in force and where it came from; what a setting means.

The text output is itself a configuration file, each line with its origin as a comment. `--markdown`
writes the tables of docs/configuration.md, so that the documentation cannot drift from the code.
"""

import argparse
import json
from itertools import groupby

from penstock.cli import ExitCode
from penstock.cli.settings_flags import add_settings_arguments, load_settings
from penstock.config import SETTINGS, TOPIC_SETTINGS, Loaded, Setting, nearest
from penstock.errors import ConfigError

EXAMPLES = """\
examples:
  penstock config                              all settings, as a configuration file
  penstock config --config penstock.toml       what `penstock serve` would take from that file
  penstock config --explain durability         what one setting means
  penstock config --json | jq .tcp_address
"""

Value = str | int | bool | list[str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print the settings in force and where each came from."
    parser.usage = (
        "penstock config [--json | --explain SETTING | --markdown]"
        " [--config FILE] [--SETTING VALUE ...]"
    )
    parser.epilog = EXAMPLES
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--json", action="store_true", help="as one JSON object")
    what.add_argument("--explain", metavar="SETTING", help="what a setting means, with its reason")
    what.add_argument(
        "--markdown", action="store_true", help="all settings as tables, as in the documentation"
    )
    add_settings_arguments(parser)


def run(args: argparse.Namespace) -> int:
    if args.markdown:
        print(markdown())
        return ExitCode.OK
    if args.explain:
        print(explain(args.explain))
        return ExitCode.OK
    loaded = load_settings(args)
    print(json.dumps(as_json(loaded), indent=2) if args.json else as_toml(loaded))
    return ExitCode.OK


def plain(setting: Setting, value: object) -> Value:
    """A value as TOML and JSON have it: numbers and booleans bare, the rest as people write it."""
    if setting.kind.several:
        return [item for item in setting.kind.show(value).split(",") if item]
    shown = setting.kind.show(value)
    return value if isinstance(value, int) and shown in {str(value), str(value).lower()} else shown


def as_toml(loaded: Loaded) -> str:
    """A configuration file with origins as comments."""
    lines = []
    for title, settings in groupby(SETTINGS.values(), key=lambda setting: setting.group):
        lines += [f"# {title}"]
        for setting in settings:
            value = plain(setting, getattr(loaded.settings, setting.field))
            # JSON's notation of texts, numbers, booleans and arrays of texts is TOML's too
            line = f"{setting.key} = {json.dumps(value, ensure_ascii=False)}"
            lines += [f"{line:<48} # {loaded.origins[setting.key]}"]
        lines += [""]
    for name, topic in loaded.settings.topics.items():
        lines += [f"[topics.{json.dumps(name)}]"]
        for key, setting in TOPIC_SETTINGS.items():
            if (given := getattr(topic, setting.field)) is not None:
                line = f"{key} = {json.dumps(plain(setting, given))}"
                lines += [f"{line:<48} # {loaded.origins[f'topics.{name}.{key}']}"]
        lines += [""]
    return "\n".join(lines).rstrip()


def as_json(loaded: Loaded) -> dict[str, object]:
    """By key: value and origin; the topics' own settings under `topics`."""

    def entry(setting: Setting, value: object, origin: str) -> dict[str, object]:
        source, detail = loaded.origins[origin]
        return {"value": plain(setting, value), "source": source, "detail": detail}

    found: dict[str, object] = {
        key: entry(setting, getattr(loaded.settings, setting.field), key)
        for key, setting in SETTINGS.items()
    }
    found["topics"] = {
        name: {
            key: entry(setting, given, f"topics.{name}.{key}")
            for key, setting in TOPIC_SETTINGS.items()
            if (given := getattr(topic, setting.field)) is not None
        }
        for name, topic in loaded.settings.topics.items()
    }
    return found


def explain(key: str) -> str:
    """What a person needs to know of one setting, given its key, flag or variable."""
    key = key.removeprefix("--").replace("-", "_").lower().removeprefix("penstock_")
    setting = SETTINGS.get(key)
    if setting is None:
        raise ConfigError(f"there is no setting '{key}'{nearest(key, SETTINGS)}")
    return (
        f"{setting.key}: {setting.doc}\n"
        f"  default  {setting.default_shown or 'none'} ({setting.reason})\n"
        f"  write    {setting.kind.hint.removeprefix('write ')}\n"
        f"  flag     {setting.flag}\n"
        f"  variable {setting.variable}"
    )


def markdown() -> str:
    """The settings as Markdown tables, one per group."""
    parts = []
    for title, settings in groupby(SETTINGS.values(), key=lambda setting: setting.group):
        parts += [f"### {title}", "", "| setting | default | what it is | why this default |"]
        parts += ["|---|---|---|---|"]
        for setting in settings:
            default = f"`{setting.default_shown}`" if setting.default_shown else "none"
            reason = setting.reason[0].upper() + setting.reason[1:]
            parts += [f"| `{setting.key}` | {default} | {setting.doc} | {reason}. |"]
        parts += [""]
    return "\n".join(parts).rstrip()
