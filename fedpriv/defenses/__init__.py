"""What a client can do to an upload before it leaves."""

from __future__ import annotations

DEFENSES: dict[str, str] = {}
