"""The wire: payloads, the ledger that counts them, and their sizes; no training.

Names of kinds of payload stand here, so that a wrong one is refused without importing torch.
"""

from fedpriv.util.registry import Registry

_CLASSES = {
    "representation": "Representations",
    "prototype": "Prototypes",
    "entangled": "Entangled",
    "angle-matrix": "AngleMatrix",
    "logits": "ClassLogits",
    "kernel": "Kernel",
    "public-logits": "PublicLogits",
    "label-counts": "LabelCounts",
    "sample-count": "SampleCount",
    "model": "Model",
    "small-model": "SmallModel",
    "classifier": "Classifier",
    "extractor": "Extractor",
    "low-rank-model": "LowRankModel",
    "generator": "Generator",
    "energy": "Energy",
    "public-images": "PublicImages",
    "public-samples": "PublicSamples",
    "coefficient": "Coefficient",
    "feature-mean": "FeatureMean",
}

PAYLOADS = Registry(
    "kind of payload",
    {kind: f"fedpriv.uploads.payloads:{name}" for kind, name in _CLASSES.items()},
    group="fedpriv.payloads",
    contract="fedpriv.uploads.kinds:refuse_no_payload",
)
"""Names of kinds of payload and where they are."""
