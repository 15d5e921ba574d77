//! Where operations run: what Core ML says it will do, and what is asked of it.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// What of a machine may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum ComputeUnits {
    /// The processor and the Neural Engine.
    #[default]
    CpuAndNe,
    /// The processor and the graphics unit.
    CpuAndGpu,
    /// The processor.
    CpuOnly,
    /// All there is.
    All,
}

impl ComputeUnits {
    /// The names of all.
    pub const NAMES: [&str; 4] = ["cpu_and_ne", "cpu_and_gpu", "cpu_only", "all"];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::CpuAndNe => Self::NAMES[0],
            Self::CpuAndGpu => Self::NAMES[1],
            Self::CpuOnly => Self::NAMES[2],
            Self::All => Self::NAMES[3],
        }
    }
}

impl FromStr for ComputeUnits {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::CpuAndNe, Self::CpuAndGpu, Self::CpuOnly, Self::All];
        let found = all.into_iter().find(|units| units.name() == text);
        found.ok_or_else(|| format!("use one of {}", Self::NAMES.join(", ")))
    }
}

/// A part of the machine that runs operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Device {
    /// The processor.
    Cpu,
    /// The graphics unit.
    Gpu,
    /// The Neural Engine.
    Ane,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cpu => "cpu",
            Self::Gpu => "gpu",
            Self::Ane => "ane",
        })
    }
}

/// An operation of a function as the plan has it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlannedOp {
    /// Name of its first output.
    pub name: String,
    /// Its operator, as `conv`.
    pub operator: String,
    /// Where it would run; none of constants and the like.
    pub device: Option<Device>,
    /// Where it could run.
    pub supported: Vec<Device>,
    /// Its share of the estimated cost, from 0 to 1, where that is told.
    pub cost: Option<f64>,
}

/// Where the operations of a function would run, in order.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct ComputePlan {
    /// Operations, constants and such without a device included.
    pub ops: Vec<PlannedOp>,
}

/// A plan in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PlanSummary {
    /// Operations on the processor.
    pub cpu_ops: usize,
    /// Operations on the graphics unit.
    pub gpu_ops: usize,
    /// Operations on the Neural Engine.
    pub ane_ops: usize,
    /// Share of the estimated cost that is on the Neural Engine; of the operations where costs are not told. None without operations.
    pub ane_share: Option<f64>,
    /// Times the next operation runs elsewhere than the one before.
    pub transitions: usize,
}

impl ComputePlan {
    /// The plan in numbers.
    pub fn summary(&self) -> PlanSummary {
        let placed: Vec<(&PlannedOp, Device)> =
            self.ops.iter().filter_map(|op| Some((op, op.device?))).collect();
        let count = |device| placed.iter().filter(|(_, on)| *on == device).count();
        let told = placed.iter().any(|(op, _)| op.cost.is_some());
        let weight = |op: &PlannedOp| if told { op.cost.unwrap_or(0.0) } else { 1.0 };
        let all: f64 = placed.iter().map(|(op, _)| weight(op)).sum();
        let ane: f64 = placed.iter().filter(|(_, on)| *on == Device::Ane).map(|(op, _)| weight(op)).sum();
        PlanSummary {
            cpu_ops: count(Device::Cpu),
            gpu_ops: count(Device::Gpu),
            ane_ops: count(Device::Ane),
            // A sum of nothing is -0.
            ane_share: (all > 0.0).then(|| ane / all + 0.0),
            transitions: placed.windows(2).filter(|pair| pair[0].1 != pair[1].1).count(),
        }
    }

    /// Operations that do not run on the Neural Engine, and why as far as the plan tells.
    pub fn away(&self) -> impl Iterator<Item = (&PlannedOp, &'static str)> {
        self.ops.iter().filter_map(|op| {
            let device = op.device.filter(|device| *device != Device::Ane)?;
            let could = op.supported.contains(&Device::Ane);
            let reason = match (could, device) {
                (true, _) => "it could run there; Core ML's planner prefers another place",
                (false, _) => "the Neural Engine does not run it as it is",
            };
            Some((op, reason))
        })
    }
}

/// What is demanded of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Require {
    /// Least share of the Neural Engine, from 0 to 1.
    pub ane_share: f64,
}

impl FromStr for Require {
    type Err = String;

    /// Reads `ane`, or `ane=95` with a share in percent.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write ane, or ane=PERCENT with a number from 0 to 100".to_owned();
        let share = match text.strip_prefix("ane").ok_or_else(wrong)? {
            "" => 100.0,
            rest => rest.strip_prefix('=').and_then(|percent| percent.parse().ok()).ok_or_else(wrong)?,
        };
        if !(0.0..=100.0).contains(&share) {
            return Err(wrong());
        }
        Ok(Self { ane_share: share / 100.0 })
    }
}

impl Require {
    /// Errors when a function's plan falls short, or is not known; names the operations that are elsewhere.
    pub fn check(&self, function: &str, plan: Option<&ComputePlan>) -> Result<(), crate::Error> {
        let fails = |problem: String| crate::Error::Placement { function: function.to_owned(), problem };
        let plan = plan.ok_or_else(|| fails("the system tells no plan".to_owned()))?;
        let share = plan.summary().ane_share.unwrap_or(0.0);
        // A sum of shares may miss the whole by its rounding.
        if share + 1e-9 >= self.ane_share {
            return Ok(());
        }
        let away: Vec<String> = plan
            .away()
            .take(3)
            .map(|(op, reason)| {
                format!(
                    "{} ({}) is on the {}: {reason}",
                    op.name,
                    op.operator,
                    op.device.unwrap_or(Device::Cpu)
                )
            })
            .collect();
        Err(fails(format!(
            "{:.1} % of it is on the Neural Engine and {:.1} % are asked for; {}",
            share * 100.0,
            self.ane_share * 100.0,
            if away.is_empty() { "no operation has a place".to_owned() } else { away.join("; ") }
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(name: &str, device: Option<Device>, cost: Option<f64>) -> PlannedOp {
        let supported = vec![Device::Cpu, Device::Ane];
        PlannedOp { name: name.into(), operator: "conv".into(), device, supported, cost }
    }

    #[test]
    fn shares_are_of_cost_where_it_is_told_and_of_operations_elsewhere() {
        let (ane, cpu) = (Some(Device::Ane), Some(Device::Cpu));
        let plan = ComputePlan {
            ops: vec![
                op("w", None, None),
                op("a", ane, Some(0.9)),
                op("b", cpu, Some(0.1)),
                op("c", ane, None),
            ],
        };
        let summary = plan.summary();
        assert_eq!((summary.ane_ops, summary.cpu_ops, summary.gpu_ops, summary.transitions), (2, 1, 0, 2));
        assert!((summary.ane_share.unwrap() - 0.9).abs() < 1e-12);
        let bare = ComputePlan { ops: vec![op("a", ane, None), op("b", cpu, None)] };
        assert_eq!(bare.summary().ane_share, Some(0.5));
        assert_eq!(ComputePlan::default().summary().ane_share, None);
        let demand: Require = "ane=95".parse().unwrap();
        let error = demand.check("decode", Some(&plan)).unwrap_err().to_string();
        assert!(
            error.contains("decode") && error.contains("90.0 %") && error.contains("b (conv)"),
            "{error}"
        );
        assert!("ane=90".parse::<Require>().unwrap().check("decode", Some(&plan)).is_ok());
        assert!("ane".parse::<Require>().unwrap().check("decode", None).is_err());
        assert!("ane".parse::<Require>().unwrap().check("decode", Some(&ComputePlan::default())).is_err());
        for bad in ["gpu", "ane=", "ane=101", "ane=-1", "ane=NaN", "ane50"] {
            assert!(bad.parse::<Require>().is_err(), "{bad}");
        }
    }

    #[test]
    fn units_have_names() {
        for name in ComputeUnits::NAMES {
            assert_eq!(name.parse::<ComputeUnits>().unwrap().name(), name);
        }
        assert!("ane".parse::<ComputeUnits>().unwrap_err().contains("cpu_and_ne"));
    }
}
