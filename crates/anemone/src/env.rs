#![allow(clippy::disallowed_methods, reason = "the one place that reads the environment")]

use std::ffi::OsString;
use std::path::PathBuf;

use anemone_checkpoint::hub::Hub;
use anyhow::{Result, anyhow};

/// The environment variables the command listens to.
#[derive(Clone)]
pub(crate) struct Environment {
    /// `HF_ENDPOINT`: the hub's address.
    pub(crate) hf_endpoint: Option<String>,
    /// `HF_HUB_OFFLINE`: use only the cache.
    pub(crate) hf_offline: bool,
    /// Where hub models are kept, from `HF_HUB_CACHE`, `HF_HOME`, `XDG_CACHE_HOME` and the home directory.
    pub(crate) hub_cache: Option<PathBuf>,
    /// `HTTPS_PROXY` or `ALL_PROXY`.
    pub(crate) proxy: Option<String>,
    hf_token: Option<String>,
}

impl Environment {
    pub(crate) fn read() -> Result<Self> {
        let path = |name| std::env::var_os(name).map(PathBuf::from);
        let home = path("HOME").or_else(|| path("USERPROFILE"));
        let offline = text("HF_HUB_OFFLINE")?.unwrap_or_default().to_ascii_lowercase();
        let proxy = ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
        let proxy = proxy.into_iter().find_map(|name| text(name).transpose()).transpose()?;
        Ok(Self {
            hf_endpoint: text("HF_ENDPOINT")?,
            hf_offline: matches!(offline.as_str(), "1" | "on" | "yes" | "true"),
            hub_cache: Hub::cache_dir(path("HF_HUB_CACHE"), path("HF_HOME"), path("XDG_CACHE_HOME"), home),
            proxy,
            hf_token: text("HF_TOKEN")?,
        })
    }

    /// The hub as the environment and two options describe it.
    pub(crate) fn hub(&self, offline: bool, revision: Option<&str>) -> Hub {
        Hub {
            endpoint: self.hf_endpoint.clone(),
            token: self.hf_token.clone(),
            cache_dir: self.hub_cache.clone(),
            offline: offline || self.hf_offline,
            revision: revision.map(str::to_owned),
            proxy: self.proxy.clone(),
            retries: 5,
        }
    }

    /// Whether an access token is set.
    pub(crate) fn has_token(&self) -> bool {
        self.hf_token.is_some()
    }
}

impl std::fmt::Debug for Environment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Environment").field("hub_cache", &self.hub_cache).finish_non_exhaustive()
    }
}

/// Where this program keeps what it can make again; none when no home is known.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = path("HOME").or_else(|| path("USERPROFILE"));
    let own = if cfg!(target_os = "macos") {
        home.map(|home| home.join("Library/Caches"))
    } else {
        path("XDG_CACHE_HOME").or_else(|| home.map(|home| home.join(".cache")))
    };
    own.map(|dir| dir.join("anemone"))
}

/// Whether `NO_COLOR` asks for plain text.
pub(crate) fn no_color() -> bool {
    std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
}

fn text(name: &str) -> Result<Option<String>> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    let bad = |value: OsString| {
        anyhow!("environment variable {name} is not UTF-8 ({} bytes); correct or unset it", value.len())
    };
    value.map(|value| value.into_string().map_err(bad)).transpose()
}
