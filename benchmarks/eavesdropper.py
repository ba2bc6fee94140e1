"""Does a password of a run show anywhere where others could read it?"""

import contextlib
import socket
import threading
from pathlib import Path
from typing import Self

import psutil


class Eavesdropper:
    """Listens to what the hosts say to each other, and looks for passwords of runs: in the environment of servers they are to be
    found, and nowhere else. ``found`` are the places where one was, ``passwords`` how many there were."""

    def __init__(self, root: Path, interface: str) -> None:
        self._root, self._interface = root, interface
        self._packets, self._secrets = list[bytes](), set[bytes]()
        self._lines = set[bytes]()
        self._over = threading.Event()
        self._threads = [threading.Thread(target=act, daemon=True) for act in (self._capture, self._look)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _capture(self) -> None:
        everything = socket.htons(3)  # ETH_P_ALL
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, everything) as tap:
            tap.bind((self._interface, 0))
            tap.settimeout(0.5)
            while not self._over.is_set():
                with contextlib.suppress(TimeoutError):
                    if len(packet := tap.recv(1 << 17)) < 2000:  # larger ones carry files and WAL
                        self._packets.append(packet)

    def _look(self) -> None:
        while not self._over.wait(0.2):
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error, OSError):
                    self._lines.add(" ".join(process.cmdline()).encode())
                    if secret := process.environ().get("PGPASSWORD"):
                        self._secrets.add(secret.encode())

    def complaints(self) -> list[str]:
        """Where a password was seen, or that there was none to look for."""
        files = list[bytes]()
        for path in self._root.rglob("*"):
            if path.is_file() and "tls" not in path.parts:
                with contextlib.suppress(FileNotFoundError):  # of a run that is being tidied up
                    files.append(path.read_bytes())
        places = {"a packet": self._packets, "a command line": self._lines, "a file": files}
        seen = [
            f"a password was in {place}"
            for place, texts in places.items()
            if any(secret in text for secret in self._secrets for text in texts)
        ]
        return seen + ([] if self._secrets and self._packets else ["nothing was heard, so nothing is known"])
