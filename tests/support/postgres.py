"""A real PostgreSQL for tests, started as an unprivileged user in a folder of its own and stopped afterwards.

Its programs come from the wheel `pgserver` or from the system's packages. They are copied, since an unprivileged user
may not be able to reach the environment's folder. There is no network: clients connect through a socket in the folder.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from urllib.parse import quote

PASSWORD = "hush-hush-canary"
USER = "reader"
NAMED = "${KOHORT_TEST_PASSWORD}"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}


@dataclass(frozen=True)
class Postgres:
    """A running server."""

    socket: Path

    def address(self, table: str = "", *, password: str = NAMED, database: str = "postgres") -> str:
        """The address of a table, with the password named by an environment variable."""
        place = f"postgresql://{USER}:{password}@/{database}?host={quote(str(self.socket), safe='')}"
        return f"{place}#{table}" if table else place

    def execute(self, *statements: str) -> None:
        """Run statements as the owner of the database."""
        import psycopg

        with psycopg.connect(host=str(self.socket), user=USER, password=PASSWORD, dbname="postgres") as connection:
            for statement in statements:
                connection.execute(statement.encode())


@contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Start a server; it ends, and its folder goes, with the block."""
    folder = Path(tempfile.mkdtemp(prefix="kohort-pg-"))
    try:
        programs = _programs(folder)
        (folder / "password").write_text(PASSWORD)
        as_user = _unprivileged(folder)
        data = folder / "data"
        subprocess.run(
            [programs / "initdb", "-D", data, "-U", USER, "-A", "scram-sha-256", "--pwfile", folder / "password", "-N"],
            check=True,
            capture_output=True,
            **as_user,
        )
        server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-k", folder, "-c", "listen_addresses=", "-c", "fsync=off"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **as_user,
        )
        try:
            yield _ready(Postgres(folder), server)
        finally:
            server.terminate()
            server.wait(timeout=30)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs(folder: Path) -> Path:
    """The folder of initdb and postgres; there must be one, for these tests are not left out."""
    wheel = importlib.util.find_spec("pgserver")
    if wheel is not None and wheel.submodule_search_locations:
        package = Path(wheel.submodule_search_locations[0])
        for part in ("pgserver/pginstall", "pgserver.libs"):  # the programs look for their libraries beside them
            shutil.copytree(package.parent / part, folder / part, symlinks=True)
        return folder / "pgserver" / "pginstall" / "bin"
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found:
        return found[-1].parent
    raise RuntimeError("these tests need PostgreSQL: pip install pgserver, or apt install postgresql")


def _unprivileged(folder: Path) -> dict[str, object]:
    """How to start a program: PostgreSQL refuses to run as root."""
    options: dict[str, object] = {"cwd": folder, "env": ENVIRONMENT}
    if os.getuid() != 0:
        return options
    nobody = pwd.getpwnam("nobody")
    folder.chmod(0o755)
    for path in (folder, folder / "password"):
        os.chown(path, nobody.pw_uid, nobody.pw_gid)
    return {**options, "user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _ready(server: Postgres, process: subprocess.Popen[bytes]) -> Postgres:
    import psycopg

    ends = monotonic() + 60
    while True:
        try:
            server.execute("SELECT 1")
            return server
        except psycopg.OperationalError:
            if monotonic() > ends or process.poll() is not None:
                raise
            sleep(0.05)
