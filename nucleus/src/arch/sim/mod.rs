//! A machine inside an ordinary process.
