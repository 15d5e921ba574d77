use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

/// Largest text file that is read.
const TEXT_LIMIT: u64 = 64 << 20;

/// The text of a file, of at most 64 MiB.
pub(crate) fn read_text(flag: &str, path: &Path) -> Result<String> {
    let file = File::open(path)
        .with_context(|| format!("{flag} {}: cannot open it; check the path", path.display()))?;
    read_all(&format!("{flag} {}", path.display()), file)
}

/// Everything a reader gives, as text of at most 64 MiB; `label` is what errors call it.
pub(crate) fn read_all(label: &str, reader: impl Read) -> Result<String> {
    let mut bytes = Vec::new();
    reader
        .take(TEXT_LIMIT + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("{label}: cannot read it"))?;
    ensure!(
        bytes.len() as u64 <= TEXT_LIMIT,
        "{label}: more than {} MiB; give a part of it",
        TEXT_LIMIT >> 20
    );
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{label}: not UTF-8 at byte {at}; save the text as UTF-8")
    })
}

/// Refuses an output that is the file read from.
pub(crate) fn distinct(input: &Path, flag: &str, output: &Path) -> Result<()> {
    let same = output.canonicalize().is_ok_and(|there| input.canonicalize().is_ok_and(|read| read == there));
    ensure!(!same, "{flag} {}: this is the file that is read; name another file", output.display());
    Ok(())
}

/// Writes a file through a temporary sibling that takes its name when `write` has succeeded; a link stays, and what it leads to is
/// written.
pub(crate) fn write_whole(
    flag: &str,
    path: &Path,
    write: impl FnOnce(&mut File) -> Result<()>,
) -> Result<()> {
    let label = || format!("{flag} {}", path.display());
    if let Ok(meta) = fs::metadata(path)
        && !meta.is_file()
    {
        bail!("{}: exists and is not a regular file; name a file", label());
    }
    let path = &place(path).with_context(label)?;
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    ensure!(
        parent.is_dir(),
        "{}: the directory {} does not exist; create it first",
        label(),
        parent.display()
    );
    ensure!(path.file_name().is_some(), "{}: not a file name; name a file", label());
    let mut builder = tempfile::Builder::new();
    builder.prefix(".anemone-");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(0o666));
    }
    let mut file = builder
        .tempfile_in(parent)
        .with_context(|| format!("{}: cannot create a file there; check the permissions", label()))?;
    // What else went wrong meanwhile is not the file's fault.
    write(file.as_file_mut()).and_then(|()| Ok(file.as_file_mut().flush()?)).map_err(|error| {
        if error.root_cause().is::<std::io::Error>() {
            error.context(format!("{}: cannot write it; check the free space", label()))
        } else {
            error
        }
    })?;
    file.persist(path).with_context(|| format!("{}: cannot give the finished file its name", label()))?;
    Ok(())
}

/// The file that a path leads to, which must not be where stdout or stderr go already.
fn place(path: &Path) -> Result<PathBuf> {
    if fs::symlink_metadata(path).is_err() {
        return Ok(path.to_owned());
    }
    let real = path.canonicalize().context("it is a link that leads nowhere; name a file")?;
    #[cfg(unix)]
    {
        use std::os::fd::AsFd;
        use std::os::unix::fs::MetadataExt;
        let of = |meta: fs::Metadata| (meta.dev(), meta.ino());
        let file = fs::metadata(&real).map(of).ok();
        let (out, err) = (std::io::stdout(), std::io::stderr());
        for stream in [out.as_fd(), err.as_fd()] {
            let open = stream.try_clone_to_owned().and_then(|fd| File::from(fd).metadata());
            ensure!(
                file.is_none() || open.map(of).ok() != file,
                "stdout or stderr go there already; name another file"
            );
        }
    }
    let linked = fs::symlink_metadata(path).is_ok_and(|meta| meta.is_symlink());
    Ok(if linked { real } else { path.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.txt");
        let failed = write_whole("--out", &path, |file| {
            file.write_all(b"half")?;
            bail!("interrupted")
        });
        assert_eq!(failed.unwrap_err().to_string(), "interrupted");
        let failed = write_whole("--out", &path, |_| Err(std::io::Error::other("full").into()));
        assert!(failed.unwrap_err().to_string().starts_with("--out "));
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        write_whole("--out", &path, |file| Ok(file.write_all(b"whole")?)).unwrap();
        assert_eq!(read_text("--file", &path).unwrap(), "whole");
        let missing = write_whole("--out", &dir.path().join("no/such"), |_| Ok(())).unwrap_err();
        assert!(missing.to_string().contains("does not exist; create it"), "{missing}");
        let directory = write_whole("--out", dir.path(), |_| Ok(())).unwrap_err();
        assert!(directory.to_string().contains("not a regular file"), "{directory}");
    }

    #[cfg(unix)]
    #[test]
    fn a_link_stays_and_what_it_leads_to_is_written() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let (file, link, loose) =
            (dir.path().join("a.txt"), dir.path().join("b.txt"), dir.path().join("c.txt"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        symlink(dir.path().join("none"), &loose).unwrap();
        write_whole("--out", &link, |out| Ok(out.write_all(b"new")?)).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        let nowhere = write_whole("--out", &loose, |_| Ok(())).unwrap_err();
        assert!(format!("{nowhere:#}").contains("leads nowhere; name a file"), "{nowhere:#}");
        assert!(distinct(&file, "--out", &link).is_err() && distinct(&file, "--out", &loose).is_ok());
    }

    #[test]
    fn bad_text_names_the_byte() {
        let error = read_all("stdin", &b"ab\xff"[..]).unwrap_err();
        assert_eq!(error.to_string(), "stdin: not UTF-8 at byte 2; save the text as UTF-8");
    }
}
