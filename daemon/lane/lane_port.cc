// The calls of other threads: each becomes a command for the lane's thread, behind what it must wait for.
#include <memory>
#include <mutex>
#include <utility>

#include "daemon/lane/lane_impl.h"

namespace tensorlane::lane {

Status Lane::start_job(ports::JobSpec spec) {
  Impl* const impl = impl_.get();
  const JobId job = spec.credentials.job;
  {
    std::lock_guard lock(impl->specs_mutex);
    impl->specs[job] = std::make_shared<const ports::JobSpec>(spec);
  }
  auto start = std::make_shared<host::JobStart>(std::move(spec), impl->config, impl->ports);
  return impl->prepare(start->spec, [start] { return start->step(); }, {job, [impl, start]() mutable {
                                                                          impl->host->begin(start);
                                                                          impl->preparer.dispose(std::move(start));
                                                                          return true;
                                                                        }});
}

Status Lane::attach(JobId job, Rank rank, std::shared_ptr<ports::ClientSession> session) {
  Impl* const impl = impl_.get();
  Command command{job, [impl, job, rank, session = std::move(session)] {
                    if (host::Job* j = impl->host->find(job)) j->attach(rank, session);
                    return true;
                  }};
  return impl->preparer.add_behind(command) ? Status() : impl->post(std::move(command));
}

Status Lane::apply_plan(JobId job, protocol::Plan added, std::function<void()> then) {
  Impl* const impl = impl_.get();
  const std::shared_ptr<const ports::JobSpec> spec = impl->spec_of(job);
  if (spec == nullptr) {
    return impl->post({job, [then = std::move(then)] {
                         if (then) then();
                         return true;
                       }});
  }
  auto growth = std::make_shared<host::PlanGrowth>(std::move(added), spec, impl->ports);
  const Epoch epoch = spec->credentials.epoch;
  return impl->prepare(*spec, [growth] { return growth->step(); },
                       {job, [impl, job, epoch, growth, then = std::move(then)]() mutable {
                          host::Job* j = impl->host->find(job);
                          const bool there = j != nullptr && j->epoch() == epoch;
                          if (there && !j->grow(*growth, impl->host->now())) return false;
                          if (there && then && growth->taken == growth->added.tensors.size())
                            j->when_settled(std::move(then));
                          impl->preparer.dispose(std::move(growth));
                          return true;
                        }});
}

Status Lane::vacate(JobId job, std::uint32_t version, protocol::TensorRange range, std::function<void()> then) {
  Impl* const impl = impl_.get();
  const auto shrinking = std::make_shared<host::PlanShrinking>(host::PlanShrinking{version, range, 0, {}, {}});
  const std::shared_ptr<const ports::JobSpec> spec = impl->spec_of(job);
  const Epoch epoch = spec == nullptr ? Epoch() : spec->credentials.epoch;
  Command gone{job, [then = std::move(then)] {
                 if (then) then();
                 return true;
               }};
  Command command{job, [impl, job, epoch, shrinking, gone = std::move(gone)] {
                    host::Job* j = impl->host->find(job);
                    if (j == nullptr || j->epoch() != epoch) return gone.run();
                    if (!j->vacate(*shrinking, impl->host->now())) return false;
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
                  }};
  return impl->preparer.add_behind(command) ? Status() : impl->post(std::move(command));
}

Status Lane::bind(JobId job, Rank rank, TensorId tensor, ports::BufferPlace place) {
  return impl_->on_job(job, [rank, tensor, place](host::Job& j) { j.bind(rank, tensor, place); });
}

Status Lane::use_thresholds(JobId job, std::vector<double> thresholds) {
  return impl_->on_job(
      job, [thresholds = std::move(thresholds)](host::Job& j) mutable { j.use_thresholds(std::move(thresholds)); });
}

Status Lane::awaited(JobId job, TensorId tensor, Sequence sequence, Duration waited) {
  Impl* const impl = impl_.get();
  return impl->on_job(
      job, [=](host::Job& j) { j.peer_awaits(tensor, sequence, Time(impl->host->now().value - waited.value)); });
}

// A job that still waits for its memory never begins.
Status Lane::abort_job(JobId job, Status cause) {
  Impl* const impl = impl_.get();
  impl->preparer.cancel(job);
  return impl->post({job, [impl, job, cause = std::move(cause)] {
                       if (host::Job* j = impl->host->find(job)) {
                         j->abort(cause, impl->host->now());
                       } else {
                         // A job that is not there (any more) is closed as well as it can be.
                         impl->forget(job);
                         impl->listener->on_job_closed(job);
                       }
                       return true;
                     }});
}

Status Lane::detach(JobId job, Rank rank) {
  Impl* const impl = impl_.get();
  return impl->on_job(job, [rank, impl](host::Job& j) { j.detach(rank, impl->host->now()); });
}

Status Lane::admit(const ports::JobSpec& spec, std::span<const protocol::TensorBody> tensors) const {
  const host::Need need = host::need_of(tensors, spec);
  const auto check = [&]() -> Status {
    if (impl_->ports.regions != nullptr) TL_RETURN_IF_ERROR(impl_->ports.regions->check(spec.owner, need.regions));
    return impl_->ports.scratch->check(spec.owner, need.bytes);
  };
  return host::on_host(check(), spec);
}

}  // namespace tensorlane::lane
