"""The gated delta rule of Kimi Delta Attention: decay gate, recurrence, chunked form."""

from interlace.ops.delta_rule.choose import KDA_BACKENDS as KDA_BACKENDS
from interlace.ops.delta_rule.choose import KDACall as KDACall
from interlace.ops.delta_rule.choose import kda as kda
from interlace.ops.delta_rule.chunked import kda_chunk as kda_chunk
from interlace.ops.delta_rule.gate import GATE_BACKENDS as GATE_BACKENDS
from interlace.ops.delta_rule.gate import GateCall as GateCall
from interlace.ops.delta_rule.gate import kda_gate as kda_gate
from interlace.ops.delta_rule.gate import kda_gates as kda_gates
from interlace.ops.delta_rule.recurrent import kda_recurrent as kda_recurrent
from interlace.ops.delta_rule.recurrent import kda_step as kda_step
from interlace.ops.delta_rule.reference import KDAStages as KDAStages
from interlace.ops.delta_rule.reference import kda_gate_reference as kda_gate_reference
from interlace.ops.delta_rule.reference import kda_reference as kda_reference
from interlace.ops.delta_rule.reference import kda_reference_stages as kda_reference_stages
