"""KV events of SGLang and vLLM: what the engines publish of their caches, decoded for a router that is aware of them.

`wire` turns a payload into checked events, `view` keeps what one rank holds, `feed` follows one publisher and counts.
"""
