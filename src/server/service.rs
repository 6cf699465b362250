//! What stands behind the listener: one method per mirror call. Must not know sockets, frames or versions.

use crate::wire::mirror_rpc::{
    DeleteClusterMirrorRequest, DeleteClusterMirrorResponse, DescribeClusterMirrorsRequest,
    DescribeClusterMirrorsResponse, ListClusterMirrorsRequest, ListClusterMirrorsResponse,
    PauseMirrorTopicsRequest, PauseMirrorTopicsResponse, ReadMirrorStatesRequest,
    ReadMirrorStatesResponse, RecoverMirrorTopicsRequest, RecoverMirrorTopicsResponse,
    ResumeMirrorTopicsRequest, ResumeMirrorTopicsResponse, StartMirrorTopicsRequest,
    StartMirrorTopicsResponse, StopMirrorTopicsRequest, StopMirrorTopicsResponse,
    WriteMirrorStatesRequest, WriteMirrorStatesResponse,
};

/// Declares the trait and, once, which calls there are.
macro_rules! services {
    ($( $(#[$meta:meta])* $method:ident: $request:ident => $response:ident; )+) => {
        /// Answers mirror calls. What came in is well formed and nothing more: names may be empty, numbers negative, lists long
        /// or doubled; whatever cannot be is answered with INVALID_REQUEST.
        ///
        /// # Cancel safety
        /// A call is dropped in the middle when its peer goes or its time is over. What must be finished then belongs to a task of the
        /// service's own.
        pub trait Service: Clone + Send + Sync + 'static {
            $(
                $(#[$meta])*
                fn $method(&self, request: $request) -> impl Future<Output = $response> + Send;
            )+
        }

        /// Calls `$with!(method Request, ...)` with every call of [`Service`].
        macro_rules! for_every_call {
            ($with:ident) => {
                $with! { $( $method $request, )+ }
            };
        }
    };
}

services! {
    /// Wants topics to be mirrored.
    start_mirror_topics: StartMirrorTopicsRequest => StartMirrorTopicsResponse;
    /// Wants topics to become ordinary ones; there is no way back.
    stop_mirror_topics: StopMirrorTopicsRequest => StopMirrorTopicsResponse;
    /// Names the mirrors.
    list_cluster_mirrors: ListClusterMirrorsRequest => ListClusterMirrorsResponse;
    /// Says how far the partitions are that this process owns, and who the other processes are.
    describe_cluster_mirrors: DescribeClusterMirrorsRequest => DescribeClusterMirrorsResponse;
    /// Says what is written of the states of partitions whose coordinator this process is.
    read_mirror_states: ReadMirrorStatesRequest => ReadMirrorStatesResponse;
    /// Writes states of partitions whose coordinator this process is.
    write_mirror_states: WriteMirrorStatesRequest => WriteMirrorStatesResponse;
    /// Wants topics to stand still.
    pause_mirror_topics: PauseMirrorTopicsRequest => PauseMirrorTopicsResponse;
    /// Wants paused topics to be mirrored again.
    resume_mirror_topics: ResumeMirrorTopicsRequest => ResumeMirrorTopicsResponse;
    /// Forgets a mirror of which every topic is stopped.
    delete_cluster_mirror: DeleteClusterMirrorRequest => DeleteClusterMirrorResponse;
    /// Tries FAILED partitions again, also those that would not be by themselves.
    recover_mirror_topics: RecoverMirrorTopicsRequest => RecoverMirrorTopicsResponse;
}

pub(super) use for_every_call;
