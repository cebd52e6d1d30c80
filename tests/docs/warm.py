"""A server that has imported the program and runs each command in a fork of itself.

To import PyTorch and Lightning takes a command longer than what the docs have it do. The program
`deltacell` that `start` puts into a folder hands its words, folder, environment and streams to the
server, and ends with the exit code of the fork. Synthetic screens have as many genotypes as the
environment says, and a training ends after a few epochs.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

MOST_EPOCHS = 4
CLIENT = """#!{python} -S
import json, os, socket, sys
# A command that starts others does so as `python -m deltacell`.
words = sys.argv[2 * (sys.argv[1:3] == ["-m", "deltacell"]) :]
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    words = json.dumps([words, os.getcwd(), dict(os.environ)]).encode()
    socket.send_fds(server, [len(words).to_bytes(4, "big")], [0, 1, 2])
    server.sendall(words)
    sys.exit(int(server.recv(16)))
"""


def start(folder: Path) -> subprocess.Popen[bytes]:
    """Write the program into a folder, and start the server with everything imported."""
    program, address = folder / "deltacell", str(folder / "socket")
    program.write_text(CLIENT.format(python=sys.executable, address=address))
    program.chmod(0o755)
    server = subprocess.Popen([sys.executable, __file__, address], stdout=subprocess.PIPE)
    assert server.stdout is not None
    server.stdout.readline()
    return server


def serve(address: str) -> None:
    os.environ["POLARS_MAX_THREADS"] = "1"
    import lightning  # noqa: F401

    import deltacell.evaluate.runs  # noqa: F401
    from deltacell import verbs
    from deltacell.screen import Screen
    from deltacell.train import run

    whole, train = Screen.synthetic, run.train

    def smaller(cell, n=None, **options):
        return whole(cell, n=int(os.environ["TEST_GENOTYPES"]) if n is None else n, **options)

    def shorter(config, **options):
        trainer = replace(config.trainer, epochs=min(config.trainer.epochs, MOST_EPOCHS))
        return train(replace(config, trainer=trainer), **options)

    Screen.synthetic, run.train, verbs.train = smaller, shorter, shorter
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()
        os.write(1, b"ready\n")
        while True:
            client, _ = listening.accept()
            # Each is answered by a process of its own, so that a command can start others.
            if os.fork() == 0:
                listening.close()
                client.sendall(str(answer(client, address)).encode())
                os._exit(0)
            client.close()


def answer(client: socket.socket, address: str) -> int:
    size, streams, *_ = socket.recv_fds(client, 4, 3)
    words = client.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    child = os.fork()
    if child == 0:
        sys.executable = str(Path(address).with_name("deltacell"))
        run(streams, *json.loads(words))
    for stream in streams:
        os.close(stream)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if code >= 0 else 128 - code


def run(streams: list[int], words: list[str], folder: str, environment: dict[str, str]) -> None:
    from deltacell.cli import main

    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = words
    code: object = 0
    try:
        main()
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    serve(sys.argv[1])
