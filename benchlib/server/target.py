"""What names a server that is not ours, and the place on it that may be ours."""

from __future__ import annotations

from typing import Annotated, Any, Self
from urllib.parse import parse_qsl, urlsplit

from pydantic import Field, model_validator

from benchlib.plan.level import Model, NotEmpty

_SECRETS = frozenset(
    {"password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key"}
)
"""The parameters of a libpq connection that are secrets."""


class Target(Model):
    """A server that is not ours: a connection service, or a ``postgresql://`` URI.

    The benchmark makes a database of its own there, or, with ``own_schema``, a schema whose name
    begins so in the database that the service names; where that database holds tables of others it
    is refused unless ``beside`` repeats its name. A text stands for the ``server``.
    Passwords belong into ``.pgpass``, the service file or the environment.
    """

    server: NotEmpty
    own_schema: Annotated[str | None, Field(pattern="^[a-z_][a-z0-9_]{0,49}$")] = None
    beside: NotEmpty | None = None

    @model_validator(mode="before")
    @classmethod
    def _text(cls, value: Any) -> Any:
        return {"server": value} if isinstance(value, str) else value

    @model_validator(mode="after")
    def _no_secret(self) -> Self:
        if "://" in self.server or "=" in self.server:
            parts = urlsplit(self.server)
            given = {name.lower() for name, _ in parse_qsl(parts.query)}
            if parts.scheme not in ("postgresql", "postgres"):
                raise ValueError("want the name of a connection service, or a postgresql:// URI")
            if parts.password is not None or given & _SECRETS:
                raise ValueError(
                    "no password in a level: it would stand in notebooks and reports; "
                    "put it into .pgpass, the service file or PGPASSWORD"
                )
        if self.own_schema and self.own_schema.startswith("pg_"):
            raise ValueError("names that begin with pg_ are the server's own")
        if self.beside and not self.own_schema:
            raise ValueError("'beside' names the database that 'own_schema' is made in")
        return self
