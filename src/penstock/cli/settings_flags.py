"""The broker's settings as flags: `sync_interval` is `--sync-interval`, documented the same.

Verbs that need settings (`serve`, `config`) call `add_settings_arguments`, then `load_settings`.
What a value may look like is decided in `penstock.config`, so a bad one reads the same wherever it
came from.
"""

import argparse
import os
from itertools import groupby
from pathlib import Path

from penstock.config import SETTINGS, Loaded, Setting, load
from penstock.config.kinds import FLAG

_DEST = "setting_"


def add_settings_arguments(parser: argparse.ArgumentParser) -> None:
    """`--config` and one flag per setting, in the groups of the documentation."""
    parser.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="a TOML file of settings (or PENSTOCK_CONFIG); environment and flags go over it",
    )
    for title, settings in groupby(SETTINGS.values(), key=lambda setting: setting.group):
        group = parser.add_argument_group(title)
        for setting in settings:
            _add_flag(group, setting)


def _add_flag(group: argparse._ArgumentGroup, setting: Setting) -> None:
    shown = setting.default_shown or "none"
    described = f"{setting.doc} ({setting.kind.hint}; default {shown})".replace("%", "%%")
    dest = _DEST + setting.key
    if setting.kind is FLAG:
        group.add_argument(
            setting.flag,
            dest=dest,
            action=argparse.BooleanOptionalAction,
            default=argparse.SUPPRESS,
            help=described,
        )
        return
    group.add_argument(
        setting.flag,
        dest=dest,
        action="append" if setting.kind.several else "store",
        default=argparse.SUPPRESS,
        metavar=setting.key.rpartition("_")[2].upper(),
        help=described,
    )


def load_settings(args: argparse.Namespace) -> Loaded:
    """Settings from the file, the environment and these arguments."""
    flags = {
        dest.removeprefix(_DEST): given
        for dest, given in vars(args).items()
        if dest.startswith(_DEST)
    }
    return load(file=args.config, environment=os.environ, flags=flags)
