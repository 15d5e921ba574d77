use crate::Error;

/// How the entries of a table are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Method {
    /// Least squared error over all tables, before entries are rounded to fp16.
    Exact,
    /// At most 1.01 times the least squared error before entries are rounded, which is checked against a bound; in part of the
    /// time.
    Fast,
    /// Evenly spaced between the least and the largest weight.
    Uniform,
}

/// Which table a weight's code looks into and how many entries it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Scheme {
    /// Bits of a code: 1, 2, 3, 4, 6 or 8.
    pub bits: u8,
    /// Output channels (rows) that share a table; one table for the whole tensor when absent.
    pub group: Option<usize>,
    /// Consecutive output channels a code stands for: 1, 2 or 4.
    pub vector: usize,
    /// How entries are chosen.
    pub method: Method,
}

impl Scheme {
    /// A scheme for single numbers.
    pub fn new(bits: u8, group: Option<usize>, method: Method) -> Self {
        Self { bits, group, vector: 1, method }
    }

    /// Entries of a table.
    pub fn entries(&self) -> usize {
        1 << self.bits
    }

    /// Errors when no package can hold such tables.
    pub fn check(&self) -> Result<(), Error> {
        if !matches!(self.bits, 1 | 2 | 3 | 4 | 6 | 8) {
            return Err(Error::Bits { bits: self.bits });
        }
        match self.vector {
            2 | 4 if self.method == Method::Uniform => Err(Error::UniformVector { vector: self.vector }),
            1 | 2 | 4 => Ok(()),
            vector => Err(Error::Vector { vector }),
        }
    }

    /// Rows of a group in a tensor of `rows`: groups are equal, as the packages ask for.
    ///
    /// The size asked for where it divides the rows, else the nearest that does between its half and its double, the smaller of
    /// two as near; all rows where there are fewer than a group. Errors where nothing divides.
    pub fn group_rows(&self, rows: usize) -> Result<usize, Error> {
        if !rows.is_multiple_of(self.vector) {
            return Err(Error::Rows { rows, vector: self.vector });
        }
        let Some(group) = self.group.filter(|g| *g < rows) else { return Ok(rows) };
        let fits = |g: &usize| *g > 0 && rows.is_multiple_of(*g) && g.is_multiple_of(self.vector);
        let near = (group.div_ceil(2)..=(2 * group).min(rows)).filter(fits);
        near.min_by_key(|g| (g.abs_diff(group), *g)).ok_or(Error::Group { rows, group })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_divide_the_rows() {
        let scheme = Scheme::new(4, Some(32), Method::Fast);
        for (rows, expected) in [(64, 32), (96, 32), (20, 20), (48, 24), (80, 40), (33, 33), (1, 1)] {
            assert_eq!(scheme.group_rows(rows), Ok(expected), "{rows}");
        }
        assert_eq!(Scheme { group: None, ..scheme }.group_rows(97), Ok(97));
        assert_eq!(scheme.group_rows(257), Err(Error::Group { rows: 257, group: 32 }));
        let said = scheme.group_rows(257).unwrap_err().to_string();
        assert!(said.starts_with("no group of 16 to 64 rows divides its 257 rows; choose"), "{said}");
        let pairs = Scheme { vector: 2, ..scheme };
        assert_eq!(pairs.group_rows(90), Ok(30));
        assert_eq!(pairs.group_rows(33), Err(Error::Rows { rows: 33, vector: 2 }));
        // 21 rows are whole vectors of one only, so the pair falls on 42.
        assert_eq!(pairs.group_rows(126), Ok(42));
    }

    #[test]
    fn what_packages_cannot_hold_is_refused() {
        let good = Scheme::new(6, None, Method::Exact);
        assert_eq!(good.check(), Ok(()));
        assert_eq!(Scheme { bits: 5, ..good }.check(), Err(Error::Bits { bits: 5 }));
        assert_eq!(Scheme { vector: 3, ..good }.check(), Err(Error::Vector { vector: 3 }));
        let even = Scheme { vector: 2, method: Method::Uniform, ..good };
        assert_eq!(even.check(), Err(Error::UniformVector { vector: 2 }));
    }
}
