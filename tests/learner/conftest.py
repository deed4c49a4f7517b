"""Hand-made trajectories and jobs, shared by the learner's tests."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).parent
if "learner_examples" not in sys.modules:
    spec = importlib.util.spec_from_file_location("learner_examples", _HERE / "examples.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["learner_examples"] = module
    spec.loader.exec_module(module)
