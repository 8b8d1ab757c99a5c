"""Fault tests bring their own instances; what they share is in tests/lib."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lib"))
