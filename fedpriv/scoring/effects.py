"""Least effects: a difference smaller than these is no leak, however sure it is. Records carry theirs."""

from __future__ import annotations

DECIBELS = 0.5
"""Of mean PSNR above the strongest guess."""

ERROR_SHARE = 0.1
"""Of a recovered vector's relative error, as a share of the strongest guess's error."""

IDENTIFIED = 0.05
"""Of a rate (images or vectors told apart, classes recognised) above what the strongest guess reaches."""

AUC = 0.55
"""Area under the ROC curve that membership and property inference must exceed."""

FOUND_AT_1_PERCENT = 0.03
"""Share of members found at 1 % false positives that membership inference must exceed."""
