// The calls of other threads: each becomes a command for the lane's thread, behind what it must wait for.
#include <memory>
#include <mutex>
#include <utility>

#include "daemon/lane/clocks.h"
#include "daemon/lane/lane_impl.h"

namespace tensorlane::lane {

Status Lanes::start_job(ports::JobSpec spec) {
  Impl* const impl = impl_.get();
  const JobId job = spec.credentials.job;
  const std::size_t home = impl->add(spec).home;
  auto start = std::make_shared<host::JobStart>(std::move(spec), impl->config, impl->ports[home]);
  Command command{job,
                  [impl, &loop = *impl->loops[home], start]() mutable {
                    loop.host().begin(start);
                    impl->preparer.dispose(std::move(start));
                    return true;
                  },
                  home};
  return impl->prepare(
      start->spec, [start] { return start->step(); }, std::move(command));
}

Status Lanes::attach(JobId job, Rank rank, std::shared_ptr<ports::ClientSession> session) {
  const std::size_t home = impl_->find(job).home;
  Command command{job,
                  [&loop = *impl_->loops[home], job, rank, session = std::move(session)] {
                    if (host::Job* j = loop.host().find(job)) j->attach(rank, session);
                    return true;
                  },
                  home};
  return impl_->preparer.add_behind(command) ? Status() : impl_->post(std::move(command));
}

Status Lanes::apply_plan(JobId job, protocol::Plan added, std::function<void()> then) {
  Impl* const impl = impl_.get();
  const Impl::Entry entry = impl->find(job);
  if (entry.spec == nullptr) {
    return impl->post({job, [then = std::move(then)] {
                         if (then) then();
                         return true;
                       }});
  }
  auto growth = std::make_shared<host::PlanGrowth>(std::move(added), entry.spec, impl->ports[entry.home]);
  const Epoch epoch = entry.spec->credentials.epoch;
  Command command{job,
                  [impl, &loop = *impl->loops[entry.home], job, epoch, growth, then = std::move(then)]() mutable {
                    host::Job* j = loop.host().find(job);
                    const bool there = j != nullptr && j->epoch() == epoch;
                    if (there && !j->grow(*growth, loop.host().now())) return false;
                    if (there && then && growth->taken == growth->added.tensors.size())
                      j->when_settled(std::move(then));
                    impl->preparer.dispose(std::move(growth));
                    return true;
                  },
                  entry.home};
  return impl->prepare(
      *entry.spec, [growth] { return growth->step(); }, std::move(command));
}

Status Lanes::vacate(JobId job, std::uint32_t version, protocol::TensorRange range, std::function<void()> then) {
  Impl* const impl = impl_.get();
  const auto shrinking = std::make_shared<host::PlanShrinking>(host::PlanShrinking{version, range, 0, {}, {}});
  const Impl::Entry entry = impl->find(job);
  const Epoch epoch = entry.spec == nullptr ? Epoch() : entry.spec->credentials.epoch;
  Command gone{job,
               [then = std::move(then)] {
                 if (then) then();
                 return true;
               },
               entry.home};
  Command command{job,
                  [impl, &loop = *impl->loops[entry.home], job, epoch, shrinking, gone = std::move(gone)] {
                    host::Job* j = loop.host().find(job);
                    if (j == nullptr || j->epoch() != epoch) return gone.run();
                    if (!j->vacate(*shrinking, loop.host().now())) return false;
                    if (shrinking->done < shrinking->range.count) return true;  // the job has failed
                    const auto give_back = [shrinking] {
                      shrinking->taken = {};
                      return true;
                    };
                    j->when_settled([impl, user = j->user(), give_back, shrinking, gone] {
                      if (impl->preparer.add(user, give_back, gone)) return;
                      impl->preparer.dispose(std::make_shared<host::Taken>(std::move(shrinking->taken)));
                      gone.run();
                    });
                    return true;
                  },
                  entry.home};
  return impl->preparer.add_behind(command) ? Status() : impl->post(std::move(command));
}

Status Lanes::bind(JobId job, Rank rank, TensorId tensor, ports::BufferPlace place) {
  return impl_->on_job(job, [rank, tensor, place](host::Job& j) { j.bind(rank, tensor, place); });
}

Status Lanes::use_thresholds(JobId job, std::vector<double> thresholds) {
  return impl_->on_job(
      job, [thresholds = std::move(thresholds)](host::Job& j) mutable { j.use_thresholds(std::move(thresholds)); });
}

Status Lanes::awaited(JobId job, TensorId tensor, Sequence sequence, Duration waited) {
  return impl_->on_job(job,
                       [=](host::Job& j) { j.peer_awaits(tensor, sequence, Time(clock_now().value - waited.value)); });
}

Status Lanes::open_flows(JobId job, HostIndex peer) {
  Loop& loop = *impl_->loops[impl_->find(job).home];
  return impl_->on_job(job, [peer, &loop](host::Job& j) { j.open_flows_to(peer, loop.host().now()); });
}

Status Lanes::rank_left(JobId job, Rank rank) {
  return impl_->on_job(job, [rank](host::Job& j) { j.rank_left(rank); });
}

// A job that still waits for its memory never begins.
Status Lanes::abort_job(JobId job, Status cause) {
  Impl* const impl = impl_.get();
  impl->preparer.cancel(job);
  const Impl::Entry entry = impl->find(job);
  const Epoch epoch = entry.spec == nullptr ? Epoch() : entry.spec->credentials.epoch;
  return impl->post({job,
                     [impl, &loop = *impl->loops[entry.home], job, epoch, cause = std::move(cause)] {
                       if (host::Job* j = loop.host().find(job)) {
                         j->abort(cause, loop.host().now());
                       } else {
                         // A job that is not there (any more) is closed as well as it can be.
                         impl->forget(job, epoch);
                         loop.listener().on_job_closed(job);
                       }
                       return true;
                     },
                     entry.home});
}

Status Lanes::detach(JobId job, Rank rank) {
  Loop& loop = *impl_->loops[impl_->find(job).home];
  return impl_->on_job(job, [rank, &loop](host::Job& j) { j.detach(rank, loop.host().now()); });
}

Status Lanes::admit(const ports::JobSpec& spec, std::span<const protocol::TensorBody> tensors) const {
  const host::Need need = host::need_of(tensors, spec);
  const auto check = [&]() -> Status {
    if (impl_->ports.front().regions != nullptr)
      TL_RETURN_IF_ERROR(impl_->ports.front().regions->check(spec.owner, need.regions));
    return impl_->ports.front().scratch->check(spec.owner, need.bytes);
  };
  return host::on_host(check(), spec);
}

}  // namespace tensorlane::lane
