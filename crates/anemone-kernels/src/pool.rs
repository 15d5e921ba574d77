//! A thread pool for very short parallel sections: workers spin for a moment before they sleep.

#![allow(unsafe_code, reason = "a borrowed closure is lent to the workers for the length of one call")]

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Times a thread looks for new work, or for the others to finish, before it gives the core away: some tens of microseconds,
/// longer than what lies between two products of a decode step.
const SPIN: u32 = 2_000;

/// A fixed team of threads that runs numbered tasks; the caller is one of them.
pub struct Pool {
    shared: Arc<Team>,
    workers: Vec<JoinHandle<()>>,
    /// Held for the length of one `run`.
    turn: Mutex<()>,
}

struct Team {
    /// Number of the job, whether it may still be joined, and how many workers are inside: see [`OPEN`] and [`INSIDE`].
    gate: AtomicU64,
    /// The published job; valid for a worker that is inside.
    job: Mutex<Option<Job>>,
    /// Next task of each thread's own range; others take from it when theirs is empty.
    next: Box<[Line]>,
    sleepers: AtomicUsize,
    wake: Condvar,
    panicked: AtomicBool,
    stop: AtomicBool,
}

/// Bit of the gate that lets workers in; above it stands the number of the job.
const OPEN: u64 = 1 << 16;
/// Bits of the gate that count workers inside.
const INSIDE: u64 = OPEN - 1;

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicUsize);

/// What a job does with (thread, task).
type Task<'a> = dyn Fn(usize, usize) + Sync + 'a;

#[derive(Clone, Copy)]
struct Job {
    tasks: usize,
    run: *const Task<'static>,
}

// SAFETY: the pointer is to a `Sync` closure that the publisher keeps alive until every worker is done with it.
unsafe impl Send for Job {}

impl Pool {
    /// A team of `threads` threads, from 1 to 4096; `threads - 1` are started, fewer if the system refuses more.
    pub fn new(threads: usize) -> Self {
        const MOST: usize = 4096;
        let threads = threads.clamp(1, MOST);
        let shared = Arc::new(Team {
            gate: AtomicU64::new(0),
            job: Mutex::new(None),
            next: (0..threads).map(|_| Line::default()).collect(),
            sleepers: AtomicUsize::new(0),
            wake: Condvar::new(),
            panicked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        });
        let mut workers = Vec::new();
        for id in 1..threads {
            let team = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("anemone-{id}"));
            // The share of a thread that is not there is done by the others.
            let Ok(worker) = builder.spawn(move || team.work(id)) else { break };
            workers.push(worker);
        }
        Self { shared, workers, turn: Mutex::new(()) }
    }

    /// Threads in the team, the caller's included.
    pub fn threads(&self) -> usize {
        self.shared.next.len()
    }

    /// Calls `run(thread, task)` once for every task in `0..tasks` and returns when all are done.
    ///
    /// Each thread takes its own contiguous share in order, then helps the others. A worker the system does not let run in time
    /// is not waited for: the others do its share. A panic in a task is resumed here. Tasks may not call `run` of the same pool.
    pub fn run(&self, tasks: usize, run: &(dyn Fn(usize, usize) + Sync)) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(|task| run(0, task));
            return;
        }
        let _turn = lock(&self.turn);
        let team = &*self.shared;
        for (thread, next) in team.next.iter().enumerate() {
            next.0.store(start(thread, tasks, team.next.len()), Ordering::Relaxed);
        }
        // SAFETY: only the lifetime is erased; `run` outlives this call, and this call does not return (or unwind) before the
        // gate is closed and nobody is inside, after which no worker touches the job.
        #[allow(clippy::transmute_ptr_to_ptr, reason = "a cast cannot change the lifetime of a trait object")]
        let erased = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(run) };
        *lock(&team.job) = Some(Job { tasks, run: erased });
        let number = team.gate.load(Ordering::Relaxed) / (2 * OPEN) + 1;
        team.gate.store(number * 2 * OPEN + OPEN, Ordering::SeqCst);
        if team.sleepers.load(Ordering::SeqCst) > 0 {
            let _job = lock(&team.job);
            team.wake.notify_all();
        }
        let own = catch_unwind(AssertUnwindSafe(|| team.share(0, tasks, run)));
        team.gate.fetch_and(!OPEN, Ordering::AcqRel);
        let mut spins = 0u32;
        while team.gate.load(Ordering::Acquire) & INSIDE > 0 {
            spins += 1;
            if spins > SPIN {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
        let panicked = team.panicked.swap(false, Ordering::Relaxed);
        if let Err(payload) = own {
            resume_unwind(payload);
        }
        assert!(!panicked, "a task of the thread pool panicked");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        {
            let _job = lock(&self.shared.job);
            self.shared.gate.fetch_add(2 * OPEN, Ordering::SeqCst);
            self.shared.wake.notify_all();
        }
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", self.threads())
    }
}

impl Team {
    fn work(&self, id: usize) {
        let mut seen = 0;
        loop {
            seen = self.wait(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            if !self.enter(seen) {
                continue;
            }
            let job = lock(&self.job).expect("a job is published before its gate opens");
            let run = AssertUnwindSafe(|| {
                // SAFETY: the publisher waits until nobody is inside, and this worker is.
                self.share(id, job.tasks, unsafe { &*job.run });
            });
            if catch_unwind(run).is_err() {
                self.panicked.store(true, Ordering::Relaxed);
            }
            self.gate.fetch_sub(1, Ordering::Release);
        }
    }

    /// Joins job `number` unless it is closed or over.
    fn enter(&self, number: u64) -> bool {
        let mut gate = self.gate.load(Ordering::Acquire);
        while gate / (2 * OPEN) == number && gate & OPEN != 0 {
            match self.gate.compare_exchange_weak(gate, gate + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => gate = now,
            }
        }
        false
    }

    /// Waits for a job other than `seen` and returns its number.
    fn wait(&self, seen: u64) -> u64 {
        for _ in 0..SPIN {
            let number = self.gate.load(Ordering::Acquire) / (2 * OPEN);
            if number != seen {
                return number;
            }
            std::hint::spin_loop();
        }
        let mut job = lock(&self.job);
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let number = loop {
            let number = self.gate.load(Ordering::SeqCst) / (2 * OPEN);
            if number != seen {
                break number;
            }
            job = self.wake.wait(job).unwrap_or_else(PoisonError::into_inner);
        };
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        number
    }

    fn share(&self, thread: usize, tasks: usize, run: &(dyn Fn(usize, usize) + Sync)) {
        let threads = self.next.len();
        for offset in 0..threads {
            let owner = (thread + offset) % threads;
            let end = start(owner, tasks, threads) + share_len(owner, tasks, threads);
            loop {
                let task = self.next[owner].0.fetch_add(1, Ordering::Relaxed);
                if task >= end {
                    break;
                }
                run(thread, task);
            }
        }
    }
}

fn start(thread: usize, tasks: usize, threads: usize) -> usize {
    thread * tasks / threads
}

fn share_len(thread: usize, tasks: usize, threads: usize) -> usize {
    start(thread + 1, tasks, threads) - start(thread, tasks, threads)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_task_runs_once_for_many_rounds() {
        for threads in [1, 2, 3, 7] {
            let pool = Pool::new(threads);
            for tasks in [0, 1, 2, 5, 64, 257] {
                for _ in 0..50 {
                    let counts: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                    pool.run(tasks, &|thread, task| {
                        assert!(thread < threads);
                        counts[task].fetch_add(1, Ordering::Relaxed);
                    });
                    assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
                }
            }
        }
    }

    #[test]
    fn a_panic_comes_back_and_the_pool_lives_on() {
        let pool = Pool::new(3);
        let result =
            catch_unwind(AssertUnwindSafe(|| pool.run(64, &|_, task| assert!(task != 40, "task 40"))));
        assert!(result.is_err());
        let sum = AtomicUsize::new(0);
        pool.run(10, &|_, task| {
            sum.fetch_add(task, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 45);
    }

    #[test]
    fn sleeping_workers_wake() {
        let pool = Pool::new(4);
        std::thread::sleep(std::time::Duration::from_millis(30));
        let sum = AtomicUsize::new(0);
        pool.run(8, &|_, _| {
            sum.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(sum.load(Ordering::Relaxed), 8);
    }
}
