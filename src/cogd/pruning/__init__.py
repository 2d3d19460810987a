"""Channel pruning: gates on every channel that can be removed, exact removal, a small model anyone can load."""

from cogd.pruning.artefact import load_pruned as load_pruned
from cogd.pruning.artefact import read_recipe as read_recipe
from cogd.pruning.artefact import save_pruned as save_pruned
from cogd.pruning.export import export_onnx as export_onnx
from cogd.pruning.export import export_program as export_program
from cogd.pruning.gates import Gates as Gates
from cogd.pruning.gates import kept_channels as kept_channels
from cogd.pruning.graph import Prunable as Prunable
from cogd.pruning.latency import latency_share as latency_share
from cogd.pruning.latency import measure_latency as measure_latency
from cogd.pruning.layers import prunable_layers as prunable_layers
from cogd.pruning.prune import prune as prune
from cogd.pruning.removal import remove_channels as remove_channels
from cogd.pruning.result import Pruned as Pruned
from cogd.pruning.size import Size as Size
from cogd.pruning.speedup import compare_latency as compare_latency
