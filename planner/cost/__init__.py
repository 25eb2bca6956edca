"""What a setting costs: pure functions over numbers or numpy arrays, in named terms that add up.

Where to start: ``step.step_time`` and ``step.balanced_step_time`` (seconds), ``memory.memory`` (bytes),
``flops.model_flops_per_token``, ``confidence.error_band_pct``. Nothing is imported here, so that one part can
be used without loading the others.

Letters used in function bodies, as the sources print them:

==  ====================================  ===  ==============================================
h   hidden size                           t    tensor-parallel ranks
a   query heads                           c    context-parallel ranks
g   key-value heads                       p    pipeline ranks
d   head dim (in layers)                  v    chunks (virtual stages) a pipeline rank
f   MLP width                             e    expert-parallel ranks
L   layers                                b    micro-batch, sequences of one replica
V   vocabulary                            m    micro-batches of one step
s   sequence length                       F    forward time of one micro-batch on one rank
E   routed experts of a layer             D    its input-gradient time
k   experts per token                     W    its weight-gradient time (B = D + W)
==  ====================================  ===  ==============================================
"""
