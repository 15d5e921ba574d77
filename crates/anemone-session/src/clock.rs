use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

/// A moment, as chat templates print it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Timestamp {
    /// Seconds since 1970-01-01 00:00:00 UTC.
    pub unix_seconds: i64,
    /// Seconds local time is ahead of UTC.
    pub offset_seconds: i32,
}

const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

impl Timestamp {
    /// The system's time in UTC.
    pub fn now() -> Self {
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Self { unix_seconds: i64::try_from(seconds).unwrap_or(i64::MAX), offset_seconds: 0 }
    }

    /// Formats like Python's `strftime` in the C locale; errors with the directive that is not known.
    pub(crate) fn strftime(self, format: &str) -> Result<String, String> {
        let civil = Civil::new(self);
        let mut out = String::new();
        let mut rest = format.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut directive = rest.next();
            let pad = directive != Some('-');
            if !pad {
                directive = rest.next();
            }
            let known = directive.is_some_and(|d| civil.write(d, pad, &mut out));
            if !known {
                let name = directive.map(String::from).unwrap_or_default();
                return Err(format!("strftime_now: directive %{name} is not supported"));
            }
        }
        Ok(out)
    }
}

struct Civil {
    year: i64,
    month: usize,
    day: i64,
    weekday: usize,
    yearday: i64,
    second_of_day: i64,
    offset: i32,
}

impl Civil {
    /// Days to a date of the Gregorian calendar, counting years from March so that the leap day is last.
    fn new(time: Timestamp) -> Self {
        let local = time.unix_seconds.saturating_add(i64::from(time.offset_seconds));
        let days = local.div_euclid(86_400);
        let from_march_0000 = days + 719_468;
        let era = from_march_0000.div_euclid(146_097);
        let day_of_era = from_march_0000.rem_euclid(146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let yearday = if month <= 2 { day_of_year - 306 + 1 } else { day_of_year + 59 + i64::from(leap) + 1 };
        Self {
            year,
            month: month as usize,
            day: day_of_year - (153 * march_month + 2) / 5 + 1,
            weekday: (days + 4).rem_euclid(7) as usize,
            yearday,
            second_of_day: local.rem_euclid(86_400),
            offset: time.offset_seconds,
        }
    }

    fn write(&self, directive: char, pad: bool, out: &mut String) -> bool {
        let (hour, minute, second) =
            (self.second_of_day / 3600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let hour12 = (hour + 11) % 12 + 1;
        let mut number = |value: i64, width: usize| {
            let width = if pad { width } else { 0 };
            // Writing to a string cannot fail.
            let _ = write!(out, "{value:0width$}");
        };
        match directive {
            'Y' => number(self.year, 4),
            'y' => number(self.year.rem_euclid(100), 2),
            'm' => number(self.month as i64, 2),
            'd' => number(self.day, 2),
            'H' => number(hour, 2),
            'I' => number(hour12, 2),
            'M' => number(minute, 2),
            'S' => number(second, 2),
            'j' => number(self.yearday, 3),
            'w' => number(self.weekday as i64, 1),
            'f' => number(0, 6),
            'e' => {
                let _ = write!(out, "{:2}", self.day);
            }
            'B' => out.push_str(MONTHS[self.month - 1]),
            'b' | 'h' => out.push_str(&MONTHS[self.month - 1][..3]),
            'A' => out.push_str(DAYS[self.weekday]),
            'a' => out.push_str(&DAYS[self.weekday][..3]),
            'p' => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            'z' => {
                let minutes = self.offset.unsigned_abs() / 60;
                let sign = if self.offset < 0 { '-' } else { '+' };
                let _ = write!(out, "{sign}{:02}{:02}", minutes / 60, minutes % 60);
            }
            'Z' => out.push_str(if self.offset == 0 { "UTC" } else { "" }),
            'F' => return self.write_all("Y-m-d", out),
            'T' => return self.write_all("H:M:S", out),
            'R' => return self.write_all("H:M", out),
            'D' => return self.write_all("m/d/y", out),
            '%' => out.push('%'),
            _ => return false,
        }
        true
    }

    fn write_all(&self, directives: &str, out: &mut String) -> bool {
        directives.chars().all(|c| {
            if c.is_ascii_alphabetic() {
                return self.write(c, true, out);
            }
            out.push(c);
            true
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn format(unix_seconds: i64, offset_seconds: i32, format: &str) -> String {
        Timestamp { unix_seconds, offset_seconds }.strftime(format).unwrap()
    }

    #[test]
    fn known_moments() {
        // Values from Python's datetime.
        assert_eq!(format(0, 0, "%Y-%m-%d %H:%M:%S %A %j"), "1970-01-01 00:00:00 Thursday 001");
        assert_eq!(format(951_782_400, 0, "%d %b %Y %a %j"), "29 Feb 2000 Tue 060");
        assert_eq!(format(1_735_689_599, 0, "%F %T %I %p %j"), "2024-12-31 23:59:59 11 PM 366");
        assert_eq!(format(1_735_689_599, 3600, "%B %-d, %Y %-I:%M %p %z"), "January 1, 2025 12:59 AM +0100");
        assert_eq!(format(-1, 0, "%D %R %w%% %y"), "12/31/69 23:59 3% 69");
        assert_eq!(format(4_102_444_800, -34_200, "%e %h %z|%Z"), "31 Dec -0930|");
    }

    #[test]
    fn unknown_directives_and_extremes() {
        let t = Timestamp::default();
        assert!(t.strftime("%Q").unwrap_err().contains("%Q"));
        assert!(t.strftime("100%").is_err());
        for seconds in [i64::MIN, i64::MAX] {
            assert!(
                Timestamp { unix_seconds: seconds, offset_seconds: i32::MAX }.strftime("%F %T %j").is_ok()
            );
        }
        assert!(Timestamp::now().unix_seconds > 1_700_000_000);
    }
}
