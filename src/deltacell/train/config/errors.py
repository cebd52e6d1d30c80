"""Errors of Hydra and OmegaConf as errors that name the key."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import yaml  # type: ignore[import-untyped]
from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from deltacell.base.errors import InputError, did_you_mean
from deltacell.train.config.keys import GROUPS, all_keys, unknown_name

Where = str | os.PathLike[str] | None


@contextmanager
def readable_errors(where: Where = None) -> Iterator[None]:
    """Convert errors of Hydra and OmegaConf to an `InputError` that names the key."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise _config_error(error, where) from error
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        what = f"the config cannot be read: {' '.join(str(error).split())}"
        raise InputError(what, code="unreadable-config", where=where) from error
    except InputError as error:
        if where is None or error.where is not None:
            raise
        raise InputError(error.message, code=error.code, where=where, **error.fields) from error


def _config_error(error: BaseException, where: Where) -> InputError:
    if isinstance(error, MissingConfigException) and error.options is not None:
        group, _, name = str(error.missing_cfg_file).rpartition("/")
        return unknown_name(group, name, [n for n in error.options if not n.startswith("of_")])
    file = re.match(r"In '([^']+)'", str(error))
    where = file[1] if file is not None and where is None else where
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    name = re.sub(r"\[.*", "", str(getattr(cause, "full_key", None) or ""))
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return unknown_key(name, where)
    first_line = (str(cause or error).strip() or type(error).__name__).splitlines()[0]
    code = "wrong-type" if name in all_keys() else "invalid-config"
    return InputError(f"{name}: {first_line}", code=code, where=where, key=name)


def unknown_key(name: str, where: Where = None) -> InputError:
    """Return the error for a key that no config has, or not one with this model or loss."""
    what = f"unknown key '{name}'"
    if name in all_keys():
        part = name.partition(".")[0]
        what += f" for this {part}; choose another {part} with {part}=NAME"
    else:
        # ``epochs`` stands for trainer.epochs rather than for a key of one model.
        keys = sorted(all_keys(), key=lambda key: key.startswith(("model.", "loss.")))
        last = name.rpartition(".")[2]
        same = [f" (did you mean '{key}'?)" for key in keys if key.rpartition(".")[2] == last]
        what += same[0] if same else did_you_mean(name, [*keys, *GROUPS])
    return InputError(what, code="unknown-key", where=where, key=name)
