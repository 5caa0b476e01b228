//! Run time: weighed by nice values, and divided between programs and the kernel.

/// The weight of nice 0; each step is a factor of 1.25, so one step moves about a tenth of the CPU.
const WEIGHT_0: u64 = 1024;

/// By nice value, from -20; the last one is for tasks that run when hardly anything else does.
const WEIGHTS: [u64; 41] = {
    let mut weights = [0; 41];
    let mut nice = 20;
    let mut weight = WEIGHT_0;
    while nice < 40 {
        weights[nice] = weight;
        weight = (weight * 4 + 2) / 5;
        nice += 1;
    }
    nice = 20;
    weight = WEIGHT_0;
    while nice > 0 {
        nice -= 1;
        weight = weight * 5 / 4;
        weights[nice] = weight;
    }
    weights[40] = 3;
    weights
};

/// Returns the virtual time, in nanoseconds, that a task with a nice value from -20 to 20 is
/// charged for `ran` nanoseconds.
#[inline]
pub fn weighed(ran: u64, nice: i8) -> u64 {
    ran * WEIGHT_0 / WEIGHTS[(i64::from(nice) + 20) as usize]
}

/// Returns the part of `total` that went to programs, where the ticks found `program` nanoseconds
/// of programs and `kernel` of the kernel. Before the first tick all of it: programs run more than
/// the kernel does.
pub fn in_program(total: u64, program: u64, kernel: u64) -> u64 {
    match program + kernel {
        0 => total,
        ticks => (u128::from(total) * u128::from(program) / u128::from(ticks)) as u64,
    }
}
