"""``guidellm run``, with the Python it is installed in: then a tokenizer's directory
and a scratch directory. Its workers are children.
"""

from guidellm.cli import cli
from measured import base_url, concurrency, extra, measure

tokenizer, scratch = extra


def play(tokens):
    arguments = ["run", "--backend", f"kind=openai_http,target={base_url},model=mock"]
    arguments += [
        "--profile",
        f"kind=concurrent,streams={concurrency}",
        "--constraint",
        f"kind=max_requests,count={concurrency}",
    ]
    arguments += ["--tokenizer", f"kind=huggingface_auto,model={tokenizer}"]
    arguments += ["--data", f"kind=synthetic_text,prompt_tokens=32,output_tokens={tokens}"]
    arguments += ["--output", f"kind=json,path={scratch}/guidellm.json", "--disable-console"]
    cli.main(args=arguments, standalone_mode=False)


if __name__ == "__main__":  # its workers may import this file
    measure(play)
