"""Proof that every framework is handed the same stream: digests of every batch, compared."""

from portaloader.parity.check import Difference, Report, Request, Stream, check

__all__ = ["Difference", "Report", "Request", "Stream", "check"]
