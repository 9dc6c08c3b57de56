"""The earlier place of `adfs.files`, for modules that still import from here."""

from __future__ import annotations

from adfs.files import check_folder, check_writable
from adfs.files import write_whole as write_text

__all__ = ["check_folder", "check_writable", "write_text"]
