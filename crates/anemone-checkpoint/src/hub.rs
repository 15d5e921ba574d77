//! Brings a snapshot from a model hub into the local cache.
//!
//! The cache has the layout every Hugging Face tool shares (`models--org--name/{blobs,refs,snapshots}`), so a model
//! downloaded by another tool is found and the other way round. An interrupted download leaves a
//! `blobs/<etag>.incomplete` file and goes on from its end.

mod cache;
mod client;
mod spec;

use std::fmt;
use std::path::{Path, PathBuf};

use cache::RepoCache;
use client::Client;
use spec::Spec;

use crate::Error;
use crate::select::{INDEX, Selection, select};

/// The public hub.
pub const DEFAULT_ENDPOINT: &str = "https://huggingface.co";

/// Files other than weights that a model may need. The first group is read at the top of the snapshot, the second
/// by decision models.
const SMALL_FILES: [&str; 10] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "rl_agent_config.json",
    "encoder/config.json",
    "tokenizer/tokenizer.json",
    "tokenizer/tokenizer_config.json",
];

/// Where and how to look for models.
#[derive(Clone, Default)]
pub struct Hub {
    /// Base address; `None` is [`DEFAULT_ENDPOINT`].
    pub endpoint: Option<String>,
    /// Access token, sent to the endpoint only, never to where it redirects.
    pub token: Option<String>,
    /// The cache, as from [`Hub::cache_dir`]; must be set.
    pub cache_dir: Option<PathBuf>,
    /// Use only what the cache holds.
    pub offline: bool,
    /// Branch, tag or commit for specs that name none; `None` is `main`.
    pub revision: Option<String>,
    /// Address of an HTTP proxy.
    pub proxy: Option<String>,
    /// How many times a transfer that makes no progress is tried again.
    pub retries: u32,
}

/// How far a download is; passed on a start, about every megabyte, and at each file's end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress<'a> {
    /// The file, as named in the repository.
    pub file: &'a str,
    /// Its place among the files to fetch, from 1.
    pub number: usize,
    /// Number of files to fetch.
    pub count: usize,
    /// Bytes present, those of an earlier attempt included.
    pub done: u64,
    /// Size in bytes.
    pub total: u64,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "(hidden)"))
            .field("cache_dir", &self.cache_dir)
            .field("offline", &self.offline)
            .field("revision", &self.revision)
            .field("retries", &self.retries)
            .finish_non_exhaustive()
    }
}

impl Hub {
    /// The cache directory by the rules of the Hugging Face tools, given the values of the environment variables
    /// `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` and the home directory.
    pub fn cache_dir(
        hub_cache: Option<PathBuf>,
        hf_home: Option<PathBuf>,
        xdg_cache_home: Option<PathBuf>,
        home: Option<PathBuf>,
    ) -> Option<PathBuf> {
        let set = |path: Option<PathBuf>| path.filter(|p| !p.as_os_str().is_empty());
        let hf_home = || {
            let cache = || set(xdg_cache_home).or_else(|| set(home).map(|home| home.join(".cache")));
            set(hf_home).or_else(|| cache().map(|cache| cache.join("huggingface")))
        };
        set(hub_cache).or_else(|| hf_home().map(|home| home.join("hub")))
    }

    /// The snapshot directory of `org/name` or `org/name@revision`, downloading what is missing.
    ///
    /// A snapshot whose weights are complete in the cache is used without any network access. Only what a model needs
    /// is fetched: its configuration, tokenizer files, and one set of safetensors weights.
    pub fn resolve(&self, spec: &str, progress: &mut dyn FnMut(Progress<'_>)) -> Result<PathBuf, Error> {
        let spec = Spec::parse(spec, self.revision.as_deref())?;
        let cache = self.repo_cache(&spec)?;
        let missing = match cache.complete(&spec.revision, self.offline)? {
            Ok(snapshot) => return Ok(snapshot),
            Err(missing) => missing,
        };
        if self.offline {
            return Err(Error::HubOffline {
                repo: spec.repo,
                revision: spec.revision,
                cache: cache.root().to_owned(),
                missing,
            });
        }
        let client = Client::new(self, &spec.repo)?;
        let listing = client.list(&spec.revision)?;
        let snapshot = cache.snapshot(&listing.commit);
        let mut files: Vec<String> = SMALL_FILES
            .iter()
            .filter(|f| listing.files.iter().any(|l| l == *f))
            .map(|&f| f.to_owned())
            .collect();
        let index = listing.files.iter().any(|f| f == INDEX);
        let weights = if index {
            self.fetch(&client, &cache, &listing.commit, &[INDEX.to_owned()], progress)?;
            choose(&cache, &snapshot, &listing.files, indexed_files(&snapshot)?.as_deref())?
        } else {
            choose(&cache, &snapshot, &listing.files, None)?
        };
        if !files.iter().any(|file| file == "config.json" || file == "rl_agent_config.json") {
            return Err(Error::MissingFile {
                dir: spec.repo,
                file: "config.json".to_owned(),
                remedy: "this repository is not a model in the transformers layout; choose another one",
            });
        }
        files.extend(weights);
        self.fetch(&client, &cache, &listing.commit, &files, progress)?;
        cache.write_ref(&spec.revision, &listing.commit)?;
        Ok(snapshot)
    }

    fn repo_cache(&self, spec: &Spec) -> Result<RepoCache, Error> {
        let dir = self.cache_dir.as_deref().ok_or_else(|| Error::HubOption {
            option: "cache_dir",
            problem: "not set".to_owned(),
            remedy: "set the home directory, `HF_HOME`, or the cache directory itself",
        })?;
        Ok(RepoCache::new(dir, &spec.repo))
    }

    fn fetch(
        &self,
        client: &Client,
        cache: &RepoCache,
        commit: &str,
        files: &[String],
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<(), Error> {
        let snapshot = cache.snapshot(commit);
        let absent: Vec<&String> = files.iter().filter(|file| !snapshot.join(file).exists()).collect();
        for (i, file) in absent.iter().enumerate() {
            let meta = client.head(commit, file)?;
            let mut report = |done| {
                progress(Progress { file, number: i + 1, count: absent.len(), done, total: meta.size });
            };
            let blob = cache.blob(&meta.etag);
            let present = || blob.metadata().is_ok_and(|m| m.len() == meta.size);
            let lock = if present() { None } else { Some(cache.lock(&meta.etag)?) };
            // Another process may have finished it just before the lock was had.
            if lock.is_none() || present() {
                report(meta.size);
            } else {
                let partial = cache.partial(&meta.etag);
                client.download(commit, file, &meta, &partial, self.retries, &mut report)?;
                cache::rename(&partial, &blob)?;
            }
            cache.link(commit, file, &meta.etag)?;
        }
        Ok(())
    }
}

/// The weight files of a listing; small files are fetched before, so complete weights mean a complete snapshot.
fn choose(
    cache: &RepoCache,
    snapshot: &Path,
    names: &[String],
    indexed: Option<&[String]>,
) -> Result<Vec<String>, Error> {
    let dir = cache.repo().to_owned();
    let names: Vec<String> = names.iter().filter(|name| !name.contains(['/', '\\', '\0'])).cloned().collect();
    if let Some(indexed) = indexed
        && let Some(absent) = indexed.iter().find(|file| !names.contains(file))
        && !names.iter().any(|name| name == crate::select::SINGLE)
    {
        tracing::warn!(snapshot = %snapshot.display(), file = absent, "the index names a file the hub does not have");
    }
    match select(&names, indexed) {
        Selection::Files(files) => Ok(files),
        Selection::MissingShard(shard) => Err(Error::MissingShard { dir, shard, tensor: None }),
        Selection::Ambiguous(present, remedy) => Err(Error::AmbiguousWeights { dir, present, remedy }),
        Selection::Nothing(present, remedy) => Err(Error::NoWeights { dir, present, remedy }),
    }
}

/// The files a downloaded index names.
fn indexed_files(snapshot: &Path) -> Result<Option<Vec<String>>, Error> {
    crate::shards::indexed_files(&crate::source::Source::Dir(snapshot.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_follows_the_variables() {
        let p = |s: &str| Some(PathBuf::from(s));
        assert_eq!(Hub::cache_dir(p("/c"), p("/h"), p("/x"), p("/u")), p("/c"));
        assert_eq!(Hub::cache_dir(None, p("/h"), p("/x"), p("/u")), p("/h/hub"));
        assert_eq!(Hub::cache_dir(p(""), None, p("/x"), p("/u")), p("/x/huggingface/hub"));
        assert_eq!(Hub::cache_dir(None, None, None, p("/u")), p("/u/.cache/huggingface/hub"));
        assert_eq!(Hub::cache_dir(None, None, None, None), None);
    }
}
