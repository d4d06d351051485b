//! The codes of requests.

macro_rules! requests {
    ($($name:ident = $code:literal,)*) => {
        /// Requests that the shim answers, with their names in the specification.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum VhostRequest { $($name = $code,)* }

        impl VhostRequest {
            /// Returns the request with this code.
            pub(crate) const fn from_wire(code: u32) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }
    };
}

requests! {
    GetFeatures = 1,
    SetFeatures = 2,
    SetOwner = 3,
    ResetOwner = 4,
    SetMemTable = 5,
    SetLogBase = 6,
    SetLogFd = 7,
    SetVringNum = 8,
    SetVringAddr = 9,
    SetVringBase = 10,
    GetVringBase = 11,
    SetVringKick = 12,
    SetVringCall = 13,
    SetVringErr = 14,
    GetProtocolFeatures = 15,
    SetProtocolFeatures = 16,
    GetQueueNum = 17,
    SetVringEnable = 18,
    SendRarp = 19,
    NetSetMtu = 20,
    SetBackendReqFd = 21,
    GetConfig = 24,
    SetConfig = 25,
    GetInflightFd = 31,
    SetInflightFd = 32,
    GetMaxMemSlots = 36,
    AddMemReg = 37,
    RemMemReg = 38,
}
