use std::collections::HashSet;

use crate::text::list;

/// The one-file name.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The index of a sharded checkpoint.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// Which of a snapshot's files hold its weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Selection {
    /// These files, in order.
    Files(Vec<String>),
    /// A complete set would hold this file too.
    MissingShard(String),
    /// Several candidates: what they are and what to do.
    Ambiguous(String, &'static str),
    /// None: what there is instead and what to do.
    Nothing(String, &'static str),
}

/// Chooses by name: `model.safetensors`, else the files an index names, else a numbered set, else the only file.
///
/// `indexed` are the files named by an index, if there is one.
pub(crate) fn select(names: &[String], indexed: Option<&[String]>) -> Selection {
    let present: HashSet<&str> = names.iter().map(String::as_str).collect();
    let has = |name: &str| present.contains(name);
    if has(SINGLE) {
        return Selection::Files(vec![SINGLE.to_owned()]);
    }
    if let Some(indexed) = indexed {
        let mut found: Vec<String> = indexed.iter().filter(|file| has(file)).cloned().collect();
        if !found.is_empty() {
            found.sort_unstable();
            found.dedup();
            return Selection::Files(found);
        }
    }
    let mut sets: Vec<(&str, &str)> =
        names.iter().filter_map(|n| numbered(n)).map(|(p, _, c)| (p, c)).collect();
    sets.sort_unstable();
    sets.dedup();
    match sets[..] {
        [] => alone(names, indexed),
        [(prefix, count)] => numbered_set(&present, prefix, count),
        _ => Selection::Ambiguous(
            list(names.iter().filter(|n| numbered(n).is_some()).map(String::as_str)),
            "keep one set of shards, or download the index file",
        ),
    }
}

/// `prefix-00002-of-00003.safetensors` where the prefix starts with `model`: prefix, number, count.
fn numbered(name: &str) -> Option<(&str, usize, &str)> {
    let stem = name.strip_suffix(".safetensors")?;
    let (head, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = head.rsplit_once('-')?;
    let digits = |text: &str| !text.is_empty() && text.len() <= 6 && text.bytes().all(|b| b.is_ascii_digit());
    if !prefix.starts_with("model") || !digits(number) || number.len() != count.len() || !digits(count) {
        return None;
    }
    Some((prefix, number.parse().ok()?, count))
}

fn numbered_set(present: &HashSet<&str>, prefix: &str, count: &str) -> Selection {
    let total: usize = count.parse().unwrap_or(0);
    let width = count.len();
    let shard = |number: usize| format!("{prefix}-{number:0width$}-of-{count}.safetensors");
    // Bounded by the files there are: the first hole ends the walk.
    for number in 1..=total {
        if !present.contains(shard(number).as_str()) {
            return Selection::MissingShard(shard(number));
        }
    }
    if total == 0 {
        return Selection::Nothing(
            list(present.iter().copied()),
            "rename the shards to `model-00001-of-0000N`",
        );
    }
    Selection::Files((1..=total).map(shard).collect())
}

fn alone(names: &[String], indexed: Option<&[String]>) -> Selection {
    let with = |suffix: &str| -> Vec<&String> { names.iter().filter(|n| n.ends_with(suffix)).collect() };
    let present = || list(names.iter().map(String::as_str));
    let safetensors = with(".safetensors");
    if safetensors.is_empty()
        && let Some(shard) = indexed.and_then(|files| files.first())
    {
        return Selection::MissingShard(shard.clone());
    }
    match safetensors[..] {
        [only] if only.starts_with("adapter") => {
            Selection::Nothing(present(), "this is an adapter: merge it into its base model first")
        }
        [only] => Selection::Files(vec![only.clone()]),
        [] if with(".bin").iter().any(|n| n.starts_with("pytorch_model")) || !with(".pth").is_empty() => {
            Selection::Nothing(
                present(),
                "convert the PyTorch files to safetensors, or download the safetensors files",
            )
        }
        [] if !with(".gguf").is_empty() => {
            Selection::Nothing(present(), "pass one of the GGUF files itself as the model")
        }
        [] => Selection::Nothing(
            present(),
            "download `model.safetensors` or all of its shards into this directory",
        ),
        _ => Selection::Ambiguous(
            list(safetensors.iter().map(|n| n.as_str())),
            "name the file in the path, or rename it to `model.safetensors`",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(names: &[&str]) -> Selection {
        let names: Vec<String> = names.iter().map(|&n| n.to_owned()).collect();
        select(&names, None)
    }

    fn chosen(names: &[&str]) -> Selection {
        Selection::Files(names.iter().map(|&n| n.to_owned()).collect())
    }

    #[test]
    fn one_file_wins_over_copies() {
        assert_eq!(files(&["consolidated.safetensors", "model.safetensors"]), chosen(&["model.safetensors"]));
        assert_eq!(
            files(&["adapter_model.safetensors", "model.safetensors"]),
            chosen(&["model.safetensors"])
        );
        assert_eq!(files(&["weights.safetensors", "x.json"]), chosen(&["weights.safetensors"]));
    }

    #[test]
    fn numbered_sets_must_be_whole() {
        let whole = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        assert_eq!(files(&["consolidated.safetensors", whole[0], whole[1]]), chosen(&whole));
        assert_eq!(files(&whole[1..]), Selection::MissingShard(whole[0].to_owned()));
        assert_eq!(files(&whole[..1]), Selection::MissingShard(whole[1].to_owned()));
        assert!(matches!(files(&["model-00000-of-00000.safetensors"]), Selection::Nothing(..)));
        let mixed = [whole[0], whole[1], "model-00001-of-00003.safetensors"];
        assert!(matches!(files(&mixed), Selection::Ambiguous(..)));
        assert_eq!(
            files(&["model-1-of-999999.safetensors"]),
            chosen(&["model-1-of-999999.safetensors"]),
            "numbers of unequal width are not a set"
        );
    }

    #[test]
    fn an_index_chooses_between_sets() {
        let names: Vec<String> =
            ["a.safetensors", "b.safetensors", "c.safetensors"].map(str::to_owned).to_vec();
        assert_eq!(select(&names, Some(&names[..2])), chosen(&["a.safetensors", "b.safetensors"]));
        let gone = ["x.safetensors".to_owned()];
        assert_eq!(select(&[], Some(&gone)), Selection::MissingShard("x.safetensors".to_owned()));
    }

    #[test]
    fn other_formats_are_named() {
        let remedy = |names: &[&str]| match files(names) {
            Selection::Nothing(_, remedy) | Selection::Ambiguous(_, remedy) => remedy,
            other => panic!("{other:?}"),
        };
        assert!(remedy(&["pytorch_model.bin"]).contains("convert the PyTorch"));
        assert!(remedy(&["m.gguf"]).contains("one of the GGUF files itself"));
        assert!(remedy(&["adapter_model.safetensors"]).contains("merge"));
        assert!(remedy(&["a.safetensors", "b.safetensors"]).contains("name the file"));
        assert!(remedy(&[]).contains("download `model.safetensors`"));
    }
}
