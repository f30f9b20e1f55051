"""Chunk sizes swept both ways: what chunks of one prompt cost, and what they save the decodes beside it.

Cutting a prompt rereads the weights, and the KV before the chunk, once a chunk. The measured column is a digest of Sarathi-Serve's
artifact, figure 9 (microsoft/sarathi-serve, branch osdi-sarathi-serve, osdi-experiments, Apache-2.0): Yi-34B-200K on two A100,
prefill time relative to the uncut prompt. Its uncut run of 16,384 is slower than its chunks of 2,048, which no cost model explains.
"""

from phasemeter.serving.deploy import cost_of
from phasemeter.serving.plan import parse_plan, pools_of

PLAN = """
workload: {input_tokens: 512, output_tokens: 64, arrivals: {poisson: 1 req/s}}
deployment: {model: yi-34b-200k, hardware: A100-80G, tensor_parallel: 2}
"""
MEASURED = {
    2048: {512: 1.15, 1024: 1.17, 2048: 1.00},
    4096: {512: 1.19, 1024: 1.20, 2048: 1.02},
    8192: {512: 1.12, 1024: 1.11, 2048: 0.94},
    16384: {512: 1.00, 1024: 0.96, 2048: 0.81},
}
CHUNKS = (128, 256, 512, 1024, 2048)

cost = cost_of(pools_of(parse_plan(PLAN))["all"])


def prefill_s(prompt, chunk):
    return sum(cost.step_s(0, 0, [(min(chunk, prompt - done), done)]) for done in range(0, prompt, chunk))


print(
    "A prompt alone: its time in chunks over its time uncut, ours (measured)\nprompt"
    + "".join(f"{c:>14}" for c in CHUNKS)
)
for prompt, measured in MEASURED.items():
    whole = prefill_s(prompt, prompt)
    cells = ((prefill_s(prompt, c) / whole, measured.get(c)) for c in CHUNKS)
    print(f"{prompt:6}" + "".join(f"{ours:7.2f} " + (f"({its:.2f})" if its else "      ") for ours, its in cells))

print("\nA prompt of 8,192 among 32 decodes of 1,000 tokens each")
print("budget   first token after   a decode's gaps while it lasts   decode alone")
alone = cost.step_s(32, 32_000, [])
for budget in (*CHUNKS, 8224):
    done, steps = 0, []
    while done < 8192:
        new = min(budget - 32, 8192 - done)
        steps.append(cost.step_s(32, 32_000 + 32 * len(steps), [(new, done)]))
        done += new
    print(f"{budget:6}   {1e3 * sum(steps):14.0f} ms   {1e3 * max(steps):27.0f} ms   {1e3 * alone:9.1f} ms")

print(
    "\nMatrices compute whole tiles of 128 tokens: one token more can cost a tile (measured: 257 takes 32 % more than 256)"
)
print("chunk   " + "".join(f"{chunk:9}" for chunk in (256, 257, 384, 385, 512, 513, 2048, 2049)))
times = [cost.step_s(0, 0, [(chunk, 0)]) for chunk in (256, 257, 384, 385, 512, 513, 2048, 2049)]
print("time  " + "".join(f"{1e3 * time:7.1f}{'ms':>2}" for time in times))
print("257 over 256: " + f"{times[1] / times[0] - 1:+.0%}; 2049 over 2048: {times[7] / times[6] - 1:+.0%}")
