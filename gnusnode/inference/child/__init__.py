"""The engine child: one llama.cpp model in one process, spoken to over frames on its standard input and output.

main       the process: descriptors, limits, reader thread, the loop
channel    frames out, log lines of the native library
commands   frames in: which job or answer a frame becomes
scheduler  one step: admit, plan, decode, commit
kv         which job holds which cells of the KV cache, and which prefixes are kept
jobs       what the scheduler runs; generation, scoring and labels are its kinds
sampling   the disclosed sampler chain, with the grammar beside it
text       token bytes to text: whole characters only, stop strings withheld
prompt     messages, text or ids to token ids; no content can forge a turn
template   a chat template rendered in a process of its own
embedding  texts to vectors
model      loading, contexts, measured speed
native     llama.cpp's C interface, typed and checked
"""
