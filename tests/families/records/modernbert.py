"""ModernBERT: windows and rotary bases that differ from step to step."""

from __future__ import annotations

from family import Family

from ostinato.interop.names.encoders import modernbert

FAMILIES = [Family("modernbert", "dense/modernbert-toy", modernbert)]
