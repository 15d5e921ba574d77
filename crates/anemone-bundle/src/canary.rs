//! Recorded calls of a bundle's functions, which an executor is tried with before it is trusted.

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::Path;

use anemone_checkpoint::SafetensorsFile;
use anemone_mil::{Array, Call, Calls};
use anemone_tensor::{Bytes, DType};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use sha2::{Digest as _, Sha256};

use crate::Error;

/// The file in a bundle's directory. It is no part of the manifest, which it names by its hash: it is made when the bundle is complete.
const FILE: &str = "canary.safetensors";
/// Stands between the parts of a tensor's name.
const BETWEEN: char = '|';
const MANIFEST: &str = "manifest.sha256";

/// Most bytes of the file: far more than a large model's calls take.
const MOST: u64 = 512 << 20;

/// The calls beside a manifest; none when there are none.
pub(crate) fn read(dir: &Path) -> Result<Option<Calls>, Error> {
    let path = dir.join(FILE);
    let fail = |source| Error::Io { path: path.clone(), source };
    let broken = |problem: String| Error::Canary { path: path.clone(), problem };
    let meta = match fs::metadata(&path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(fail(error)),
    };
    if !meta.is_file() {
        return Err(broken("is no regular file".into()));
    }
    if meta.len() > MOST {
        return Err(broken(format!("has {} bytes, and recorded calls at most {MOST}", meta.len())));
    }
    let mut bytes = Vec::new();
    fs::File::open(&path).and_then(|file| file.take(MOST).read_to_end(&mut bytes)).map_err(fail)?;
    parse(bytes, &hash(dir)?).map(Some).map_err(broken)
}

/// The calls of the bundle whose manifest has this hash; else what is wrong.
fn parse(bytes: Vec<u8>, manifest: &[u8]) -> Result<Calls, String> {
    let damaged = || "is damaged or cut off".to_owned();
    let file = SafetensorsFile::parse(FILE, Bytes::from(bytes)).map_err(|_| damaged())?;
    let of = file.tensor(MANIFEST).map_err(|_| damaged())?;
    if of.bytes()[..] != manifest[..] {
        return Err("was recorded for another bundle, or the manifest was changed since".to_owned());
    }
    let mut calls = Calls::new();
    for stored in file.tensors().iter().filter(|tensor| tensor.name != MANIFEST) {
        let wrong = || format!("has a tensor '{}', which is none of a call", stored.name);
        let parts: Vec<&str> = stored.name.split(BETWEEN).collect();
        let [package, function, side, name] = parts[..] else { return Err(wrong()) };
        let tensor = file.tensor(&stored.name).map_err(|_| damaged())?;
        if tensor.dtype() != DType::F32 {
            return Err(wrong());
        }
        let data = tensor.bytes().as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        let array = Array { shape: tensor.shape().to_vec(), data };
        let call: &mut Call = calls.entry((package.to_owned(), function.to_owned())).or_default();
        match side {
            "in" => call.inputs.insert(name.to_owned(), array),
            "out" => call.outputs.insert(name.to_owned(), array),
            _ => return Err(wrong()),
        };
    }
    match calls.iter().find(|(_, call)| call.outputs.is_empty()) {
        Some(((package, function), _)) => {
            Err(format!("has a call of '{function}' of {package} without what it gave"))
        }
        None => Ok(calls),
    }
}

/// Puts calls beside a manifest, in place of others.
pub(crate) fn write(dir: &Path, calls: &Calls) -> Result<(), Error> {
    let path = dir.join(FILE);
    let fail = |source| Error::Io { path: path.clone(), source };
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    for ((package, function), call) in calls {
        for (side, arrays) in [("in", &call.inputs), ("out", &call.outputs)] {
            for (name, array) in arrays {
                let name = [package, function, side, name].join(&BETWEEN.to_string());
                let bytes = array.data.iter().flat_map(|value| value.to_le_bytes()).collect();
                tensors.push((name, array.shape.clone(), bytes));
            }
        }
    }
    let manifest = hash(dir)?;
    let broken = |error: safetensors::SafeTensorError| Error::Canary {
        path: path.clone(),
        problem: error.to_string(),
    };
    let mut views = vec![(
        MANIFEST.to_owned(),
        TensorView::new(Dtype::U8, vec![manifest.len()], &manifest).map_err(broken)?,
    )];
    for (name, shape, bytes) in &tensors {
        views.push((name.clone(), TensorView::new(Dtype::F32, shape.clone(), bytes).map_err(broken)?));
    }
    let bytes = safetensors::serialize(views, None).map_err(broken)?;
    if bytes.len() as u64 > MOST {
        let problem = format!("would have {} bytes, and recorded calls at most {MOST}", bytes.len());
        return Err(Error::Canary { path, problem });
    }
    let unfinished = dir.join(format!(".{FILE}.unfinished"));
    let mut file = fs::File::create(&unfinished).map_err(fail)?;
    file.write_all(&bytes).and_then(|()| file.sync_all()).map_err(fail)?;
    fs::rename(&unfinished, &path).map_err(fail)
}

fn hash(dir: &Path) -> Result<Vec<u8>, Error> {
    let path = dir.join("manifest.json");
    let bytes = fs::read(&path).map_err(|source| Error::Io { path, source })?;
    Ok(Sha256::digest(bytes).to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_come_back_and_belong_to_their_manifest() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("manifest.json"), "{}").unwrap();
        assert_eq!(read(dir.path()).unwrap(), None);
        let array = |data: &[f32]| Array { shape: vec![1, data.len()], data: data.to_vec() };
        let call = Call {
            inputs: [("x".to_owned(), array(&[1.0, -2.5]))].into(),
            outputs: [("y".to_owned(), array(&[f32::MIN_POSITIVE])), ("z".to_owned(), array(&[]))].into(),
        };
        let calls: Calls = [(("a.mlpackage".to_owned(), "decode".to_owned()), call)].into();
        write(dir.path(), &calls).unwrap();
        assert_eq!(read(dir.path()).unwrap(), Some(calls));
        let path = dir.path().join(FILE);
        let whole = fs::read(&path).unwrap();
        for cut in [0, 7, 40, whole.len() - 1] {
            fs::write(&path, &whole[..cut]).unwrap();
            let error = read(dir.path()).unwrap_err().to_string();
            assert!(error.matches(FILE).count() == 1 && error.contains("damaged"), "{cut}: {error}");
            assert!(error.contains("palettize") && !error.contains("download"), "{cut}: {error}");
        }
        fs::write(&path, &whole).unwrap();
        fs::write(dir.path().join("manifest.json"), "{ }").unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("another bundle") && error.contains("convert"), "{error}");
    }

    #[test]
    fn what_is_no_record_of_calls_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("manifest.json"), "{}").unwrap();
        let input = Array { shape: vec![1], data: vec![1.0] };
        let call = Call { inputs: [("x".to_owned(), input)].into(), ..Call::default() };
        let calls: Calls = [(("a.mlpackage".to_owned(), "decode".to_owned()), call)].into();
        write(dir.path(), &calls).unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("'decode' of a.mlpackage without what it gave"), "{error}");
        let path = dir.path().join(FILE);
        let file = fs::File::create(&path).unwrap();
        file.set_len(MOST + 1).unwrap();
        let error = read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("at most 536870912"), "{error}");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("no regular file"));
    }
}
