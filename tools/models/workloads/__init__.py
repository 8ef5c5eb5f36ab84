"""The workloads of AlgoPerf that the paper times, as losses of our own writing, without BatchNorm.

The sizes are AlgoPerf's. There is no dropout and no augmentation, and speech begins at its log-mel
frames. Where AlgoPerf divides a loss by the number of tokens in the batch, these are means over the
examples.
"""

from tools.models.workloads import conformer, deepspeech, fastmri, lm, resnet, vit, wmt
from tools.models.workloads.workload import Workload

WORKLOADS: dict[str, Workload] = {
    "unet": fastmri.WORKLOAD,
    "lm": lm.WORKLOAD,
    "resnet": resnet.WORKLOAD,
    "vit": vit.WORKLOAD,
    "wmt": wmt.WORKLOAD,
    "conformer": conformer.WORKLOAD,
    "deepspeech": deepspeech.WORKLOAD,
}
