"""What is known of TensorRT-LLM, version by version, and the LLM arguments written from it.

    versions      -> which versions exist where, and which flow they have
    facts         -> flags, fields and tensors, read from facts/*.json
    decoding      -> how a drafting method is spelled, and K by load in the words of a version
    llm_args      -> the LLM API's arguments: rendered, checked, written as YAML
    probe_record  -> what an installed package itself answered where the facts are silent

Everything is a function of data: nothing imports tensorrt_llm and nothing but `probe_record` opens a file of a user.
"""
