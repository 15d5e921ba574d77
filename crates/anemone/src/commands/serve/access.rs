//! Where the server listens, and whose requests it answers.

use std::net::{IpAddr, TcpListener};
use std::path::PathBuf;

use anemone_server::{Guard, Key, Listener};
use anyhow::{Context, Result};

use crate::files;

#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Access")]
pub(crate) struct AccessArgs {
    /// Address to listen on; any but this machine's own lets others in
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen on; 0 takes a free one
    #[arg(long, value_name = "N", default_value_t = 8000)]
    port: u16,
    /// Listen on a socket in the file system that only this user can reach, and on no port
    #[cfg(unix)]
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    unix_socket: Option<PathBuf>,
    /// Key that requests must show as `Authorization: Bearer KEY`; other users of this machine can see it here
    #[arg(long, value_name = "KEY", conflicts_with = "api_key_file")]
    api_key: Option<String>,
    /// A file with the key
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// A name the server goes by; requests to another one are refused (403); may be repeated [default: localhost; where it can be reached
    /// from other machines all its addresses, too, and with a key any name]
    #[arg(long, value_name = "NAME", value_parser = host)]
    allow_host: Vec<String>,
    /// An origin whose web pages may use the server, as `https://example.org`, or `*` for all; may be repeated [default: none]
    #[arg(long, value_name = "ORIGIN", value_parser = origin)]
    cors_origin: Vec<String>,
}

/// A place that is listened on.
pub(super) struct Bound {
    pub(super) listener: Listener,
    /// How people write it.
    pub(super) shown: String,
    /// Removes the socket's file at the end.
    _socket: Option<socket::Socket>,
}

impl AccessArgs {
    /// The key, where there is one.
    pub(super) fn key(&self) -> Result<Option<Key>> {
        if let Some(path) = &self.api_key_file {
            let text = files::read_text("--api-key-file", path)?;
            let key = Key::new(text.trim()).with_context(|| format!("--api-key-file {}", path.display()))?;
            return Ok(Some(key));
        }
        self.api_key.as_deref().map(Key::new).transpose().context("--api-key")
    }

    /// Whether it can be reached from other machines.
    pub(super) fn is_public(&self) -> bool {
        !self.host.is_loopback() && self.socket().is_none()
    }

    #[cfg(unix)]
    fn socket(&self) -> Option<&PathBuf> {
        self.unix_socket.as_ref()
    }

    #[cfg(not(unix))]
    #[allow(clippy::unused_self, reason = "there are no such sockets here")]
    fn socket(&self) -> Option<&PathBuf> {
        None
    }

    /// A page of whatever name could otherwise have that name mean this machine, and read the answers: it cannot where it needs a key.
    pub(super) fn guard(&self) -> Guard {
        let has_key = self.api_key.is_some() || self.api_key_file.is_some();
        let open = self.socket().is_some() || (self.is_public() && has_key);
        let named = !self.allow_host.is_empty() || !open;
        Guard {
            hosts: named.then(|| self.allow_host.clone()),
            addresses: self.is_public(),
            origins: self.cors_origin.clone(),
        }
    }

    /// Starts to listen; connections wait until they are accepted.
    pub(super) fn bind(&self) -> Result<Bound> {
        #[cfg(unix)]
        if let Some(path) = &self.unix_socket {
            let (listener, socket) = socket::bind(path)?;
            let shown = format!("unix:{}", path.display());
            return Ok(Bound { listener: Listener::Unix(listener), shown, _socket: Some(socket) });
        }
        let listener = TcpListener::bind((self.host, self.port)).with_context(|| {
            format!(
                "--host {} --port {}: cannot listen there; choose another address or port",
                self.host, self.port
            )
        })?;
        let address = listener.local_addr().context("cannot read the address that is listened on")?;
        Ok(Bound { listener: listener.into(), shown: format!("http://{address}"), _socket: None })
    }
}

fn host(text: &str) -> Result<String, String> {
    let whole = !text.is_empty() && !text.contains(['/', ' ', '?', '#', '@']);
    // A port is no part of a name; an address of six parts has colons and brackets.
    if whole && (!text.contains(':') || text.starts_with('[') && text.ends_with(']')) {
        return Ok(text.to_owned());
    }
    Err("give a name alone as in box.lan, without a scheme and a port".to_owned())
}

fn origin(text: &str) -> Result<String, String> {
    let rest = text.split_once("://").filter(|(scheme, _)| !scheme.is_empty()).map(|(_, rest)| rest);
    let whole = rest.is_some_and(|rest| !rest.is_empty() && !rest.contains(['/', '?', '#', ' ', '*']));
    if text == "*" || whole {
        return Ok(text.to_owned());
    }
    Err("give a scheme and a host as in https://example.org, with a port if there is one and nothing behind it, or *".to_owned())
}

#[cfg(unix)]
mod socket {
    use std::fs;
    use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::path::{Path, PathBuf};

    use anyhow::{Context, Result, ensure};

    /// Bytes of a path that sockets have room for.
    const LONGEST: usize = if cfg!(target_os = "linux") { 107 } else { 103 };

    /// The file of a socket, removed when dropped.
    pub(super) struct Socket(PathBuf);

    impl Drop for Socket {
        fn drop(&mut self) {
            // Nothing is lost when it stays: the next server finds that nobody answers there.
            let _ = fs::remove_file(&self.0);
        }
    }

    /// Listens at a path, in place of a socket that a server left there when it was killed.
    pub(super) fn bind(path: &Path) -> Result<(UnixListener, Socket)> {
        let flag = || format!("--unix-socket {}", path.display());
        if let Ok(found) = fs::symlink_metadata(path) {
            ensure!(
                found.file_type().is_socket(),
                "{}: there is a file, and it is no socket; choose another path",
                flag()
            );
            ensure!(
                UnixStream::connect(path).is_err(),
                "{}: a server answers there already; choose another path",
                flag()
            );
            fs::remove_file(path).with_context(flag)?;
        }
        let long = path.as_os_str().len() > LONGEST;
        let listener = UnixListener::bind(path).with_context(|| {
            if long {
                let length = path.as_os_str().len();
                return format!("{}: the path has {length} bytes and the system takes up to {LONGEST}; choose a shorter one", flag());
            }
            format!("{}: cannot listen there; choose a path in a directory you may write to", flag())
        })?;
        let socket = Socket(path.to_owned());
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).with_context(flag)?;
        Ok((listener, socket))
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn only_a_socket_nobody_answers_at_is_replaced() {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("s");
            let (listener, socket) = bind(&path).unwrap();
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(bind(&path).err().unwrap().to_string().contains("a server answers there"));
            drop(listener);
            let (_again, left) = bind(&path).unwrap();
            std::mem::forget(socket);
            drop(left);
            assert!(!path.exists());
            fs::write(&path, "mine").unwrap();
            assert!(bind(&path).err().unwrap().to_string().contains("no socket"));
            assert!(bind(&dir.path().join("a/b")).is_err());
            let long = dir.path().join("x".repeat(120));
            let error = bind(&long).err().unwrap().to_string();
            assert!(error.contains("choose a shorter one"), "{error}");
        }
    }
}

#[cfg(not(unix))]
mod socket {
    pub(super) struct Socket;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_names_alone() {
        for good in ["box.lan", "10.0.0.1", "[fe80::1]"] {
            assert!(host(good).is_ok(), "{good}");
        }
        for bad in ["", "http://x", "box.lan:80", "a b", "x/y"] {
            assert!(host(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn origins_are_a_scheme_and_a_host() {
        for good in ["*", "https://example.org", "http://localhost:3000", "app://x"] {
            assert!(origin(good).is_ok(), "{good}");
        }
        for bad in
            ["", "example.org", "https://", "https://a/b", "https://a ", "://a", "https://*.example.org"]
        {
            assert!(origin(bad).is_err(), "{bad}");
        }
    }
}
