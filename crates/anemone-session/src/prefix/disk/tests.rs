use super::*;
use crate::prefix::BLOCK_TOKENS;

const BYTES: usize = 300;

fn key(n: u8) -> Key {
    Key([n; 32])
}

fn tokens(n: u8) -> Vec<u32> {
    (0..BLOCK_TOKENS as u32).map(|i| i * u32::from(n)).collect()
}

fn block(n: u8) -> Block {
    Block { bytes: (0..BYTES).map(|i| (i as u8).wrapping_mul(n)).collect(), complete: n.is_multiple_of(2) }
}

fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + seconds)
}

fn put(disk: &Disk, n: u8) {
    disk.write(&key(n), &tokens(n), (0, time(u64::from(n))), &block(n));
}

fn get(disk: &Disk, n: u8) -> Option<Block> {
    disk.read(&key(n), &tokens(n), BYTES)
}

fn files(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn blocks_are_written_whole_and_for_this_user() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("a/b");
    let disk = Disk::open(&at, 1 << 20).unwrap();
    put(&disk, 1);
    put(&disk, 2);
    assert_eq!((get(&disk, 1), get(&disk, 2), get(&disk, 3)), (Some(block(1)), Some(block(2)), None));
    assert_eq!((disk.complete(&key(1), BYTES), disk.complete(&key(2), BYTES)), (Some(false), Some(true)));
    assert_eq!((disk.complete(&key(2), BYTES + 1), disk.complete(&key(3), BYTES)), (None, None));
    assert_eq!(files(&at), [format!("{}{ENDING}", key(1).hex()), format!("{}{ENDING}", key(2).hex())]);
    let path = disk.path(&key(1));
    assert_eq!(fs::metadata(&path).unwrap().len(), file::length(BYTES));
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&at).unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time(1));
    disk.touch(&key(1), time(50));
    assert_eq!(fs::metadata(&path).unwrap().modified().unwrap(), time(50));
}

#[test]
fn a_file_under_another_name_is_not_believed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), 1 << 20).unwrap();
    put(&disk, 1);
    // The same tokens after other ones, or of another model.
    fs::copy(disk.path(&key(1)), disk.path(&key(2))).unwrap();
    assert_eq!(disk.read(&key(2), &tokens(1), BYTES), None);
    assert_eq!(get(&disk, 1), Some(block(1)));
}

#[test]
fn no_damage_is_believed() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), 1 << 20).unwrap();
    put(&disk, 1);
    let path = disk.path(&key(1));
    let good = fs::read(&path).unwrap();
    let mut cases: Vec<Vec<u8>> = Vec::new();
    // A bit of every byte of the head and of a part of the rest; cuts; extensions; another block's file.
    for at in (0..96).chain((96..good.len()).step_by(37)) {
        let mut bad = good.clone();
        bad[at] ^= 1 << (at % 8);
        cases.push(bad);
    }
    cases.extend([0, 1, 7, 8, 60, 64, 96, 100, good.len() - 1].map(|n| good[..n].to_vec()));
    cases.push([&good[..], &[0]].concat());
    cases.push(vec![0xff; good.len()]);
    put(&disk, 2);
    cases.push(fs::read(disk.path(&key(2))).unwrap());
    // Lengths that nobody could hold.
    for at in [48, 56] {
        let mut bad = good.clone();
        bad[at..at + 8].copy_from_slice(&u64::MAX.to_le_bytes());
        cases.push(bad);
    }
    assert!(cases.len() > 100);
    for (i, bad) in cases.iter().enumerate() {
        fs::write(&path, bad).unwrap();
        assert_eq!(get(&disk, 1), None, "case {i}");
        // Ours go, so that the block can be kept again; what begins otherwise is somebody's.
        let ours = bad.iter().zip(file::MAGIC).all(|(a, b)| a == b);
        assert_eq!(path.exists(), !ours, "case {i}");
        put(&disk, 1);
        assert_eq!(get(&disk, 1).is_some(), ours, "case {i}");
        let _ = fs::remove_file(&path);
    }
    // The right file where other tokens or sizes are asked for.
    put(&disk, 1);
    assert_eq!(disk.read(&key(1), &tokens(2), BYTES), None);
    put(&disk, 1);
    assert_eq!(disk.read(&key(1), &tokens(1), BYTES - 1), None);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), 1 << 20).unwrap();
    fs::create_dir(disk.path(&key(1))).unwrap();
    std::os::unix::fs::symlink("/dev/zero", disk.path(&key(2))).unwrap();
    // A pipe would make a reader wait for ever.
    let pipe = std::process::Command::new("mkfifo").arg(disk.path(&key(3))).status();
    for n in 1..4 {
        assert_eq!(get(&disk, n), None);
        disk.touch(&key(n), time(1));
        put(&disk, n);
        assert_eq!(
            get(&disk, n).is_some(),
            n == 3 && !pipe.as_ref().is_ok_and(std::process::ExitStatus::success)
        );
    }
    put(&disk, 4);
    assert!(get(&disk, 4).is_some(), "the others are no reason to stop");
}

#[test]
fn the_file_used_longest_ago_goes_first() {
    let dir = tempfile::tempdir().unwrap();
    let length = file::length(BYTES);
    let disk = Disk::open(dir.path(), 4 * length + 10).unwrap();
    fs::write(dir.path().join("notes.txt"), vec![0; 10 * length as usize]).unwrap();
    (1..=4).for_each(|n| put(&disk, n));
    disk.touch(&key(1), time(60));
    put(&disk, 5);
    assert!(get(&disk, 2).is_none() && [1, 3, 4, 5].iter().all(|&n| get(&disk, n).is_some()));
    // Another process with less room, and one that was killed while it wrote.
    let left = disk.unfinished(&key(9));
    fs::write(&left, "half").unwrap();
    fs::File::options().append(true).open(&left).unwrap().set_modified(time(0)).unwrap();
    let young = disk.unfinished(&key(8));
    fs::write(&young, "half").unwrap();
    let small = Disk::open(dir.path(), 2 * length).unwrap();
    assert!(get(&small, 1).is_some() && get(&small, 5).is_some() && files(dir.path()).len() == 4);
    assert!(!left.exists() && young.exists() && dir.path().join("notes.txt").exists());
    // A chain that is longer than the budget is not begun to be written beyond it.
    small.write(&key(7), &tokens(7), (2, time(99)), &block(7));
    assert!(get(&small, 7).is_none() && get(&small, 1).is_some());
    // What the other writes is seen now and then.
    (20..60).for_each(|n| put(&disk, n));
    (100..120).for_each(|n| put(&small, n));
    assert!(files(dir.path()).len() <= 2 + 2);
}

#[test]
fn a_directory_that_cannot_be_used_is_an_error_or_a_warning() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    assert!(Disk::open(&file, 1).is_err() && Disk::open(&file.join("below"), 1).is_err());
    let gone = dir.path().join("gone");
    let disk = Disk::open(&gone, 1 << 20).unwrap();
    fs::remove_dir(&gone).unwrap();
    put(&disk, 1);
    assert!(get(&disk, 1).is_none() && !disk.fits(0, BYTES), "it is not tried again");
}
