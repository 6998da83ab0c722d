def run_report(run, output):
    return "<html></html>"


def training_report(output):
    return "<html></html>"
