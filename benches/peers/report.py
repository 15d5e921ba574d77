"""The JSON result as Markdown tables."""


def rate_row(label: str, s: dict, digits: int = 1) -> str:
    numbers = " | ".join(f"{s[key]:.{digits}f}" for key in ("median", "min", "max"))
    return f"| {label} | {numbers} | {s['count']} |"


def ratio_row(label: str, s: dict, bar: str) -> str:
    return (
        f"| {label} | **{s['median']:.2f}** | {s['q1']:.2f} – {s['q3']:.2f} | {s['min']:.2f} – {s['max']:.2f} "
        f"| {s['count']} | {bar} |"
    )


def mib(size: float) -> str:
    return f"{size / 2**20:.0f}"


def model_section(name: str, result: dict, bars: dict) -> list[str]:
    lines = [f"### {name}", ""]
    lines += ["| arm | median | min | max | samples |", "|---|---|---|---|---|"]
    for label, s in result["spreads"].items():
        lines.append(rate_row(label, s, 3 if label.endswith(" s") else 1))
    lines += ["", "| anemone / llama.cpp, neighbouring arms | median | quartiles | range | rounds | bar |"]
    lines += ["|---|---|---|---|---|---|"]
    for label, s in result["ratios"].items():
        lines.append(ratio_row(label, s, bars.get(label, "")))
        calm = s["undisturbed"]
        if calm and calm["count"] < s["count"]:
            lines.append(ratio_row(f"{label}, undisturbed rounds", calm, ""))
    lines += ["", "| weights read by decode | GB/s (median) | of private pages | of the mapped file |", "|---|---|---|---|"]
    for arm, row in result["bandwidth"].items():
        shares = [f"{100 * row[key]['median']:.0f} %" for key in ("share_private", "share_mapped")]
        lines.append(f"| {arm} | {row['gbs']['median']:.1f} | {shares[0]} | {shares[1]} |")
    lines += ["", "| memory, MiB, largest seen | RSS | own (anonymous) | mapped | RSS beyond the weights |", "|---|---|---|---|---|"]
    for arm, row in result["memory"].items():
        parts = [mib(row[key]) for key in ("rss_bytes", "rss_anon_bytes", "rss_file_bytes", "beyond_bytes")]
        lines.append(f"| {arm} | {' | '.join(parts)} |")
    lines += ["", "| worst position of the check | cosine | relative RMS error | equal argmax |", "|---|---|---|---|"]
    for mode, rows in result["agreement"].items():
        for label, row in rows.items():
            lines.append(f"| {mode}: {label} | {row['cosine']:.6f} | {row['rel_rms']:.1e} | {row['argmax_equal']:.2f} |")
    others = result["others_cores"]
    lines += ["", f"Other processes used {others['median']:.2f} cores (median of the arms; {others['max']:.2f} at most).", ""]
    return lines


def markdown(result: dict, bars: dict) -> str:
    machine, versions, options = result["machine"], result["versions"], result["options"]
    lines = [
        f"{result['date']}, {machine['cpu']}, {machine['cores']} cores seen, {', '.join(machine['features'])}, "
        f"{machine['memory_gib']} GiB, {machine['system']}.",
        "",
        f"anemone {versions['anemone']} at {versions['commit']}; llama-cpp-python {versions['llama_cpp_python']} (ggml {versions['ggml']}); "
        f"{options['threads']} threads, context {options['ctx']}, depth {options['depth']}, {options['rounds']} rounds "
        f"of {options['repeat']} repeats. Rates in tok/s, times in s.",
        "",
    ]
    for name, model in result["models"].items():
        lines += model_section(name, model, bars.get(name, {}))
    return "\n".join(lines)
