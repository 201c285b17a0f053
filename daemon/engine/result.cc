// Results: they flow down from the owner, straight into the tensors.
#include "common/base/assert.h"
#include "daemon/engine/impl.h"

namespace tensorlane::engine {

// The result of the slice is in the tensor. Where a partial sum of mine lay there, its reader is done with it: the
// result contains it.
void Engine::Impl::result_in_place(std::uint32_t index) {
  Slice& slice = tables_.slices[index];
  Tensor& t = tables_.tensors[slice.tensor];
  slice.phase = Slice::Phase::kResult;
  --t.results_left;
  for (std::uint32_t s = slice.results.first; s < slice.results.end(); ++s) {
    send_result(s, tables_.links[find_link(t, tables_.sends[s].peer)]);
  }
}

// Once, as soon as the result is here and the peer has said where it may land.
void Engine::Impl::send_result(std::uint32_t send, const Link& link) {
  SendItem& item = tables_.sends[send];
  const Slice& slice = tables_.slices[item.slice];
  const std::uint32_t grant = link.grant[tables_.tensors[slice.tensor].parity()];
  if (slice.phase != Slice::Phase::kResult || grant == 0 || item.state != SendItem::State::kIdle) return;
  item.grant = grant;
  queue_send(send);
}

// The peer has announced the current operation: what it contributes alone exists, and results may go to it.
void Engine::Impl::peer_announced(const Tensor& t, const Link& link) {
  if (link.leaves_exist(t.parity())) {
    for (std::uint32_t i = link.leaf_sources.first; i < link.leaf_sources.end(); ++i) {
      source_announced(tables_.sources[tables_.leaf_sources[i]].slice);
    }
  }
  for (std::uint32_t i = link.result_sends.first; i < link.result_sends.end(); ++i)
    send_result(tables_.result_sends[i], link);
}

// Something of the slice has come to its end: the operation, too, or the slice's result is there before the others'.
void Engine::Impl::end_part(std::uint32_t index, ActionRing& out) {
  const Slice& slice = tables_.slices[index];
  complete_if_done(slice.tensor, out);
  const Tensor& t = tables_.tensors[slice.tensor];
  if (!t.open || !t.in_parts || slice.phase != Slice::Phase::kResult) return;
  act({.kind = Action::Kind::kPartInPlace, .in_place = {t.plan.id, t.sequence, slice.offset, slice.elements}}, out);
}

// Done here means: all results are in place, and nothing reads the buffers any more.
void Engine::Impl::complete_if_done(std::uint32_t tensor, ActionRing& out) {
  Tensor& t = tables_.tensors[tensor];
  if (t.results_left > 0 || t.sends_left > 0) return;
  if (t.result_grant != 0) grants_.retire(t.result_grant);
  t.result_grant = 0;
  const Parity parity = t.parity();
  for (std::uint32_t l = t.links.first; l < t.links.end(); ++l) {
    Link& link = tables_.links[l];
    link.ready[parity] = link.in_parts[parity] = link.eager[parity] = false;
    link.grant[parity] = 0;
  }
  complete(tensor, true, out);
}

}  // namespace tensorlane::engine
