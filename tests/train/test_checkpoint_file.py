from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict, defaultdict
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from deltacell.errors import InputError, StoreError
from deltacell.store import sha256_of_file
from deltacell.train.checkpoints import (
    check_contents,
    plain_state,
    read_checkpoint,
    write_checkpoint,
)
from deltacell.train.config import Mode

STATE = {
    "weights": {"a": torch.arange(6.0).reshape(2, 3), "b": torch.tensor([True, False])},
    "optimizer": {
        "state": {0: {"step": torch.tensor(3.0)}},
        "betas": (0.9, 0.999),
        "foreach": None,
    },
    "seed": 7,
    "name": "his3Δ",
    "list": [1, 2.5, "x", [None, True]],
}


class Touches:
    """What makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "a.ckpt"
    write_checkpoint(file, STATE, step=8, epoch=1, metric=0.5)
    return file


def test_what_is_written_is_read(file):
    read = read_checkpoint(file)
    assert (read["step"], read["epoch"], read["metric"]) == (8, 1, 0.5)
    weights = read["state"].pop("weights")
    assert torch.equal(weights["a"], STATE["weights"]["a"])
    assert torch.equal(weights["b"], STATE["weights"]["b"])
    assert read["state"]["optimizer"].pop("state")[0]["step"].item() == 3.0
    assert read["state"] == {
        "optimizer": {"betas": (0.9, 0.999), "foreach": None},
        "seed": 7,
        "name": "his3Δ",
        "list": [1, 2.5, "x", [None, True]],
    }


def test_the_checksum_is_that_of_the_file(tmp_path):
    given = write_checkpoint(tmp_path / "a", STATE, step=1, epoch=0, metric=None)
    assert given == sha256_of_file(tmp_path / "a")


def test_a_module_and_its_optimizer_come_back(tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.AdamW(module.parameters(), foreach=False)
    module(torch.randn(5, 3)).sum().backward()
    optimizer.step()
    state = {"model": module.state_dict(), "optimizer": optimizer.state_dict()}
    write_checkpoint(tmp_path / "a", state, step=1, epoch=0, metric=None)
    read = read_checkpoint(tmp_path / "a")["state"]
    other = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    again = torch.optim.AdamW(other.parameters(), foreach=False)
    other.load_state_dict(read["model"])
    again.load_state_dict(read["optimizer"])
    for optimizer_, module_ in ((optimizer, module), (again, other)):
        optimizer_.zero_grad()
        module_(torch.ones(5, 3)).square().sum().backward()
        optimizer_.step()
    for one, two in zip(module.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)


class TestPlainState:
    def test_ordered_dicts_and_parameters_become_plain(self):
        parameter = nn.Parameter(torch.ones(2))
        plain = plain_state({"a": OrderedDict(x=parameter)})
        assert type(plain["a"]) is dict
        assert type(plain["a"]["x"]) is torch.Tensor
        assert not plain["a"]["x"].requires_grad
        assert plain["a"]["x"].data_ptr() == parameter.data_ptr()

    @pytest.mark.parametrize(
        ("value", "said"),
        [
            (np.float64(1.0), "is a numpy.float64"),
            (np.zeros(2), "is a numpy.ndarray"),
            (Mode.train, r"is a deltacell\.train\.config\.Mode"),
            (b"x", "is a builtins.bytes"),
            ({1, 2}, "is a builtins.set"),
            (defaultdict(list), r"is a collections\.defaultdict"),
            (Fraction(1, 2), r"is a fractions\.Fraction"),
            (nn.Linear(1, 1), r"is a torch\.nn\.modules\.linear\.Linear"),
            (torch.float32, r"is a torch\.dtype"),
            (len, r"is a builtins\.builtin_function_or_method"),
        ],
    )
    def test_what_cannot_be_saved_is_named(self, tmp_path, value, said):
        with pytest.raises(InputError, match=rf"'loop\.rows\[1\]\.x' of a.*{said}"):
            write_checkpoint(
                tmp_path / "a", {"loop": {"rows": [0, {"x": value}]}}, step=1, epoch=0, metric=None
            )
        assert not (tmp_path / "a").exists()

    @pytest.mark.parametrize("key", [1.5, None, (1, 2), True])
    def test_a_key_that_cannot_be_saved_is_named(self, key):
        with pytest.raises(InputError, match="'a' of a checkpoint's state has the key"):
            plain_state({"a": {key: 1}})


class TestRefused:
    def test_a_payload_that_runs_code(self, tmp_path):
        torch.save({"state": Touches(tmp_path / "made")}, tmp_path / "evil.ckpt")
        with pytest.raises(StoreError, match=r"refused: the file asks for \w+\.mkdir when it is"):
            read_checkpoint(tmp_path / "evil.ckpt")
        assert not (tmp_path / "made").exists()

    def test_a_payload_that_runs_code_in_one_of_ours(self, tmp_path, file):
        # All is as we write it, but for one value deep inside.
        payload = torch.load(file, weights_only=True)
        payload["state"]["list"][3][0] = Touches(tmp_path / "made")
        torch.save(payload, file)
        with pytest.raises(StoreError, match="refused: the file asks for"):
            read_checkpoint(file)
        assert not (tmp_path / "made").exists()

    @pytest.mark.parametrize("protocol", [2, 4, 5])
    def test_a_bare_pickle(self, tmp_path, protocol):
        evil = pickle.dumps({"state": Touches(tmp_path / "made")}, protocol=protocol)
        (tmp_path / "evil.ckpt").write_bytes(evil)
        with pytest.raises(StoreError, match="refused: this is a bare pickle"):
            read_checkpoint(tmp_path / "evil.ckpt")
        assert not (tmp_path / "made").exists()

    def test_a_file_in_the_old_form_of_pytorch(self, tmp_path):
        torch.save({"a": 1}, tmp_path / "old", _use_new_zipfile_serialization=False)
        with pytest.raises(StoreError, match="refused: this is a bare pickle"):
            read_checkpoint(tmp_path / "old")

    def test_objects_that_someone_told_pytorch_to_read(self, file):
        payload = torch.load(file, weights_only=True)
        payload["state"]["odd"] = Fraction(1, 2)
        torch.save(payload, file)
        with (
            torch.serialization.safe_globals([Fraction]),
            pytest.raises(StoreError, match=r"refused: 'odd'.*Fraction"),
        ):
            read_checkpoint(file)

    @pytest.mark.parametrize(
        "other", [{"state": {}}, [1, 2], torch.zeros(2), {"deltacell_checkpoint": 1}]
    )
    def test_a_file_of_someone_else(self, tmp_path, other):
        torch.save(other, tmp_path / "other")
        with pytest.raises(StoreError, match=r"not a checkpoint of deltacell's|damaged"):
            read_checkpoint(tmp_path / "other")

    def test_a_program_of_pytorch(self, tmp_path):
        # What makes PyTorch take it for a program is a file of this name.
        torch.save({"a": 1}, tmp_path / "script")
        with zipfile.ZipFile(tmp_path / "script", "a") as archive:
            archive.writestr("script/constants.pkl", b"")
        with (
            pytest.warns(UserWarning, match="TorchScript"),
            pytest.raises(StoreError, match="damaged, or this is not one"),
        ):
            read_checkpoint(tmp_path / "script")

    def test_another_schema_version(self, file):
        payload = torch.load(file, weights_only=True)
        torch.save({**payload, "deltacell_checkpoint": 2}, file)
        with pytest.raises(StoreError, match="schema version 2, and this program reads 1"):
            read_checkpoint(file)

    def test_a_zip_of_anything(self, tmp_path):
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("readme.txt", "x")
        with pytest.raises(StoreError, match="damaged"):
            read_checkpoint(tmp_path / "a.zip")

    @pytest.mark.parametrize("bytes_", [b"", b"x", b"PK\x03\x04", b"some text", b"\x80"])
    def test_rubbish(self, tmp_path, bytes_):
        (tmp_path / "a").write_bytes(bytes_)
        with pytest.raises(StoreError, match="damaged, or this is not one"):
            read_checkpoint(tmp_path / "a")


class TestContents:
    def test_what_was_written_is_in_order(self, file):
        check_contents(file)

    def test_every_byte_of_a_tensor_counts(self, tmp_path):
        file = tmp_path / "a"
        write_checkpoint(file, {"a": torch.arange(1000.0)}, step=1, epoch=0, metric=None)
        data = bytearray(file.read_bytes())
        place = data.index(torch.arange(500.0, 510.0).numpy().tobytes())
        data[place] ^= 1
        file.write_bytes(data)
        # PyTorch itself reads it without a word.
        assert torch.load(io.BytesIO(data), weights_only=True)
        with pytest.raises(StoreError, match="the checkpoint is damaged"):
            check_contents(file)

    @pytest.mark.parametrize("keep", [0, 1, 100, 500, -1, -30, -200])
    def test_half_a_file_is_found(self, file, keep):
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(StoreError):
            check_contents(file)
        with pytest.raises(StoreError):
            read_checkpoint(file)


def test_a_damaged_file_is_read_as_it_was_or_refused_and_never_crashes(file):
    whole = file.read_bytes()
    for place in range(0, len(whole), 41):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        file.write_bytes(damaged)
        try:
            check_contents(file)
            read = read_checkpoint(file)
        except StoreError:
            continue
        assert torch.equal(read["state"]["weights"]["a"], STATE["weights"]["a"])
        assert read["state"]["seed"] == 7
