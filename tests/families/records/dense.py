from __future__ import annotations

from family import Family

from ostinato.interop.names.decoders import jetmoe

FAMILIES = [Family("jetmoe", "dense/jetmoe-toy", jetmoe)]
